"""The Debian package of a built program: its files, that the program in it runs, what lintian and systemd say of it where
they are installed. Usage: deb_test.py SOURCE BUILD"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAM = ["usr/bin/octet", "usr/share/bash-completion/completions/octet", "usr/share/zsh/site-functions/_octet",
           "usr/share/fish/vendor_completions.d/octet.fish"]
OTHERS = ["lib/systemd/system/octet.service", "etc/octet/serve.conf", "usr/share/doc/octet/copyright",
          "usr/share/doc/octet/changelog.gz", "usr/share/doc/octet/README.md"]


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def main():
    source, build = map(pathlib.Path, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {**os.environ, "DEBFULLNAME": "A Packager", "DEBEMAIL": "packager@debian.org"}
        run("bash", source / "scripts" / "deb.sh", build, folder, env=environment)
        (package,) = folder.glob("octet_*.deb")
        run("dpkg-deb", "-x", package, folder / "root")
        files = {str(path.relative_to(folder / "root")) for path in (folder / "root").rglob("*") if not path.is_dir()}
        octet = folder / "root" / "usr/bin/octet"
        commands = [line.split()[0] for line in run(octet, "--help").split("Subcommands:")[1].split("Examples:")[0].splitlines()
                    if line.startswith("  ") and line[2] != " "]
        pages = {f"usr/share/man/man1/octet{suffix}.1.gz" for suffix in ["", *("-" + command for command in commands)]}
        examples = {f"usr/share/doc/octet/examples/{path.name}" for path in (source / "configs").glob("*.yaml")}
        expected = {*PROGRAM, *OTHERS, *pages, *examples}
        assert files == expected, f"unexpected {files - expected}, missing {expected - files}"
        assert run(octet, "--version").startswith("octet "), "the program does not run"
        fields = run("dpkg-deb", "-f", package)
        assert "Maintainer: A Packager <packager@debian.org>" in fields and "libfmt" in fields, fields
        if shutil.which("man"):
            for page in sorted(pages):
                told = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", folder / "root" / page],
                                      capture_output=True, text=True, env={**os.environ, "MANROFFSEQ": "", "MANWIDTH": "160"})
                assert told.returncode == 0 and not told.stderr.strip(), f"{page}: {told.stderr}"
        if shutil.which("lintian"):
            told = subprocess.run(["lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", package],
                                  capture_output=True, text=True)
            assert told.returncode == 0, told.stdout + told.stderr
        if shutil.which("systemd-analyze"):
            told = subprocess.run(["systemd-analyze", "verify", folder / "root" / "lib/systemd/system/octet.service"],
                                  capture_output=True, text=True).stderr
            faults = [line for line in told.splitlines() if "Unknown" in line or "parse" in line or "ignoring" in line]
            assert not faults, told
    print("ok")


if __name__ == "__main__":
    main()
