"""The Debian packages of a build: their files, that the program in them runs, what lintian and systemd say of them where
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


def check_library(folder):
    """liboctet0 and liboctet-dev: what they have, and what they depend on."""
    packages = [*folder.glob("liboctet0_*.deb"), *folder.glob("liboctet-dev_*.deb")]
    assert len(packages) == 2, packages
    for package in packages:
        run("dpkg-deb", "-x", package, folder / "library")
    names = {path.name for path in (folder / "library").rglob("*") if not path.is_dir()}
    wanted = {"liboctet.so", "liboctet.so.0", "engine.h", "sampling.h", "octetConfig.cmake", "octetConfigVersion.cmake",
              "octetTargets.cmake", "octet.pc", "stream.cc", "copyright", "changelog.gz"}
    assert wanted <= names, wanted - names
    assert "libfmt" in run("dpkg-deb", "-f", packages[0], "Depends")
    assert run("dpkg-deb", "-f", packages[1], "Depends").startswith("liboctet0 (= ")
    return packages


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
        packages = check_library(folder) if (build / "package").is_dir() else []
        if shutil.which("lintian"):
            # A build that was not configured for /usr has lib/pkgconfig, and no folder of the architecture.
            tags = ["--suppress-tags", "pkg-config-unavailable-for-cross-compilation"]
            told = subprocess.run(["lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", *tags, package, *packages],
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
