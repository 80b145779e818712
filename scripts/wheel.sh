#!/usr/bin/env bash
# Builds the wheel into dist/ with Debian's libraries inside, then installs it without network into an empty environment
# and runs its tests there. Usage: scripts/wheel.sh [pytest options], after scripts/setup.sh python.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/python/bin
# c++ is what CMake takes by itself: of the same name ccache has the objects of make test.
export CXX=c++ CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}" CMAKE_GENERATOR=Ninja
rm -rf build/wheels build/wheel-test dist/octet_llm-*.whl
"$tools/python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir build/wheels .
PATH="$PWD/$tools:$PATH" "$tools/auditwheel" repair --wheel-dir dist build/wheels/octet_llm-*.whl >build/wheels/repair.log 2>&1 ||
  { cat build/wheels/repair.log >&2; exit 1; }
"$tools/python" -m venv build/wheel-test
build/wheel-test/bin/python -m pip install -q --disable-pip-version-check --no-index dist/octet_llm-*.whl
ls -l dist/octet_llm-*.whl
# pytest from the other environment; the package from this one.
site=$("$tools/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHONPATH="$site" build/wheel-test/bin/python -m pytest -q -p no:cacheprovider "$@" tests/python
