#!/usr/bin/env bash
# Installs the Debian packages Octet needs, if any is missing. Usage: scripts/setup.sh program|test|check|fuzz
set -euo pipefail
program="g++ cmake ninja-build pkg-config libfmt-dev libspdlog-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
  libpcre2-dev libutf8proc-dev libzstd-dev zlib1g-dev libdnnl-dev"
case "${1:-program}" in
  program) wanted="$program" ;;
  test) wanted="$program libgtest-dev libbenchmark-dev ccache" ;;
  fuzz) wanted="$program clang libclang-rt-dev" ;;
  check) wanted="clang-format python3 git" ;;
  *) echo "usage: $0 program|test|check|fuzz" >&2; exit 2 ;;
esac
missing=""
for package in $wanted; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
echo "installing:$missing"
sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "these packages are missing and this user cannot install them:$missing" >&2; exit 1; }
  sudo=sudo
fi
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
