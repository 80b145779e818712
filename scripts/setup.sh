#!/usr/bin/env bash
# Installs the packages Octet needs, if any is missing. Usage: scripts/setup.sh program|test|check|tidy|fuzz|cuda|python|deb
# python: what pyproject.toml names for building and testing the wheel, from PyPI into the environment build/python.
# cuda: headers of the cuDNN frontend and of NCCL and, if there is no nvcc, the toolkit, from PyPI into build/cuda-python.
set -euo pipefail
program="g++ cmake ninja-build pkg-config libfmt-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
  libpcre2-dev libutf8proc-dev libzstd-dev zlib1g-dev libdnnl-dev libeigen3-dev
  libboost1.81-dev libssl-dev libfasttext-dev libcld2-dev"
case "${1:-program}" in
  program) wanted="$program" ;;
  test) wanted="$program libgtest-dev libbenchmark-dev ccache libopenmpi-dev openmpi-bin python3
    iproute2" ;;
  fuzz) wanted="$program clang libclang-rt-dev python3" ;;
  check) wanted="clang-format python3 git" ;;
  tidy) wanted="$program libgtest-dev libbenchmark-dev ccache libopenmpi-dev clang-tidy python3 git" ;;
  cuda) wanted="python3 python3-pip" ;;
  deb) wanted="$program dpkg-dev python3 git" ;;
  python) wanted="$program ccache python3 python3-dev python3-venv" ;;
  *) echo "usage: $0 program|test|check|tidy|fuzz|cuda|python|deb" >&2; exit 2 ;;
esac
missing=""
for package in $wanted; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
install_debian() {
  echo "installing:$missing"
  local sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "these packages are missing and this user cannot install them:$missing" >&2; exit 1; }
    sudo=sudo
  fi
  $sudo apt-get update -qq
  # shellcheck disable=SC2086
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
[ -z "$missing" ] || install_debian

if [ "${1:-}" = cuda ]; then
  target=build/cuda-python
  wheels=""
  [ -f "$target/include/cudnn_frontend.h" ] || wheels="nvidia-cudnn-frontend"
  toolkit=""
  if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    for part in cuda-nvcc cuda-crt nvvm cuda-runtime cuda-cccl cuda-cupti; do toolkit="$toolkit nvidia-$part==13.0.*"; done
    toolkit="$toolkit nvidia-cublas==13.1.* nvidia-cudnn-cu13"
  fi
  # All that lie in the folder nvidia at once: pip replaces it as a whole.
  if [ ! -f "$target/nvidia/nccl/include/nccl.h" ] ||
    { [ -n "$toolkit" ] && [ ! -x "$target/nvidia/cu13/bin/nvcc" ]; }; then
    wheels="$wheels nvidia-nccl-cu13 $toolkit"
  fi
  if [ -n "$wheels" ]; then
    echo "installing into $target: $wheels"
    # shellcheck disable=SC2086
    python3 -m pip install -q --root-user-action=ignore --no-deps --upgrade --target "$target" $wheels
  fi
fi

if [ "${1:-}" = python ]; then
  [ -x build/python/bin/python ] || "${PYTHON:-python3}" -m venv build/python
  packages=$(build/python/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))
extra = p["project"]["optional-dependencies"]
print(*p["build-system"]["requires"], *extra["build"], *extra["test"])')
  if [ "$(cat build/python/octet_packages 2>/dev/null)" != "$packages" ]; then
    echo "installing into build/python: $packages"
    # shellcheck disable=SC2086
    build/python/bin/python -m pip install -q --disable-pip-version-check $packages
    echo "$packages" >build/python/octet_packages
  fi
fi
