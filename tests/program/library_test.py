"""liboctet outside of the tree: its symbols, and the examples built by find_package(octet) and by pkg-config.
Usage: library_test.py SOURCE BUILD TEXT"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def main():
    source, build, text = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
    if not list(build.glob("liboctet.so.*")):
        print("this build has no liboctet")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for component in ("library", "development"):
            run("cmake", "--install", build, "--prefix", folder / "usr", "--component", component)
        (library,) = [path for path in folder.rglob("liboctet.so.*") if not path.is_symlink()]
        symbols = {line.split(" ", 2)[2] for line in run("nm", "-DC", "--defined-only", library).splitlines()}
        public = r"(vtable for |typeinfo for |typeinfo name for )?octet::(Engine|GenerationStream|finish_reason_name|error_kind_name)"
        others = [one for one in symbols if not re.match(public, one)]
        assert not others and any(one.startswith("octet::Engine::open(") for one in symbols), others

        octet = build / "tools" / "octet"
        quiet = {"cwd": folder}
        run(octet, "tokenizer", "train", "--vocab-size", "300", "--out", "tokenizer", text, **quiet)
        run(octet, "data", "--tokenizer", "tokenizer", "--out", "corpus", text, **quiet)
        run(octet, "train", "model.size=gpt2-nano", "model.layers=1", "model.hidden=32", "model.heads=2", "data.train=corpus",
            "data.sequence_length=32", "train.steps=2", "train.device=cpu", "out=run", **quiet)

        run("cmake", "-S", source / "examples", "-B", folder / "cmake", f"-DCMAKE_PREFIX_PATH={folder / 'usr'}")
        run("cmake", "--build", folder / "cmake")
        (checkpoint,) = (folder / "run" / "checkpoints").iterdir()
        assert "tokens, the first after" in run(folder / "cmake" / "stream", checkpoint, "The cat")

        (package,) = folder.rglob("octet.pc")
        flags = run("pkg-config", "--cflags", "--libs", "octet", env={**os.environ, "PKG_CONFIG_PATH": str(package.parent)})
        run("c++", source / "examples" / "stream.cc", *flags.split(), "-pthread", "-o", folder / "stream")
        told = run(folder / "stream", checkpoint, "The cat", env={**os.environ, "LD_LIBRARY_PATH": str(library.parent)})
        assert "tokens, the first after" in told
    print("ok")


if __name__ == "__main__":
    main()
