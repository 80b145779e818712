"""The package itself: its size, stubs, symbols, what an import brings, two OpenMP runtimes, memory."""

import ast
import os
import pathlib
import resource
import shutil
import subprocess
import sys

import pytest

import octet
from octet import _octet

PACKAGE = pathlib.Path(octet.__file__).parent


def run(source, *words, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    clean |= {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run([sys.executable, "-c", source, *map(str, words)], env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_there_is_no_logic_in_python():
    lines = [line for path in PACKAGE.glob("*.py") for line in path.read_text().splitlines()]
    assert sum(1 for line in lines if line.strip() and not line.strip().startswith("#")) <= 600


def test_stubs_have_every_name_and_every_option(engine):
    tree = ast.parse((PACKAGE / "_octet.pyi").read_text())
    members = {node.name: {one.name: one for one in getattr(node, "body", []) if isinstance(one, ast.FunctionDef)}
               for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    for name in dir(_octet):
        if name.startswith("_"):
            continue
        assert name in members, name
        for member, _ in vars(getattr(_octet, name)).items() if isinstance(getattr(_octet, name), type) else ():
            assert member.startswith("_") or member in members[name], f"{name}.{member}"
    keywords = {one.arg for one in members["Engine"]["__init__"].args.kwonlyargs}
    assert set(engine.options) <= keywords and {"threads", "chat_template"} <= keywords
    documented = (octet.Engine.__doc__ or "")
    assert all(f"    {name}: " in documented for name in keywords)
    assert (PACKAGE / "py.typed").exists()
    for name in octet.__all__:
        assert getattr(octet, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        octet.nope


def test_only_its_entry_is_exported():
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    names = subprocess.run(["nm", "-D", "--defined-only", "-g", _octet.__file__], capture_output=True, text=True).stdout
    own = [line.split()[-1] for line in names.splitlines() if " T " in line or " B " in line or " D " in line]
    assert own == ["PyInit__octet"]


def test_what_an_import_brings():
    loaded = run("import sys, octet; print(*sys.modules)")
    assert not {"numpy", "asyncio", "torch", "dataclasses", "huggingface_hub"} & set(loaded)
    spin = "import os, octet; print(os.environ.get('GOMP_SPINCOUNT'))"
    assert run(spin) == ["1000"] and run(spin, GOMP_SPINCOUNT="7") == ["7"] and run(spin, OMP_WAIT_POLICY="active") == ["None"]


@pytest.mark.parametrize("first", ["other", "octet"])
def test_two_openmp_runtimes_sleep(first, model, tmp_path):
    library = next((line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()
                    if "libgomp" in line), None)
    assert library is not None
    copy = tmp_path / "libgomp-other.so.1"
    shutil.copy(library, copy)
    idle = float(run(f"""
import ctypes, sys, time
def other():
    global body, gomp
    gomp = ctypes.CDLL(sys.argv[1])
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
def ours():
    global engine, octet
    import octet
    engine = octet.Engine(sys.argv[2], device="cpu", recipe="fp32", threads=2)
for load in {"(other, ours)" if first == "other" else "(ours, other)"}:
    load()
for _ in range(5):
    gomp.GOMP_parallel(body, None, 2, 0)
    engine.generate("The cat", max_tokens=4)
time.sleep(0.05)
begin = time.process_time()
time.sleep(0.5)
print(time.process_time() - begin)
""", copy, model)[0])
    assert idle < 0.2, "threads spin while nothing runs"


def test_memory_stays(engine):
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB

    engine.generate(["The cat"] * 500, max_tokens=2)
    before = peak()
    for _ in range(4):
        engine.generate(["The cat"] * 500, max_tokens=2, logprobs=2)
        for _ in range(50):
            next(engine.stream("The cat", max_tokens=50, mask=lambda *_: None))
    assert peak() - before < 8 << 10
