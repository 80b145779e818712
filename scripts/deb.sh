#!/usr/bin/env bash
# Packs a build as Debian packages: scripts/deb.sh BUILD OUT makes OUT/octet_VERSION_ARCH.deb and, of a build with
# OCTET_LIBRARY, liboctet0 and liboctet-dev. They depend on the packages of their libraries; the version ends in the
# commit's date. DEBFULLNAME and DEBEMAIL name the maintainer.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd) out=$(mkdir -p "$2" && cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debian=$root/packaging/debian
epoch=$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)
version=$("$build/tools/octet" --version | awk 'NR == 1 {print $2}')+$(date -u -d "@$epoch" +%Y%m%d)
maintainer="${DEBFULLNAME:-The Octet authors} <${DEBEMAIL:-$(id -un)@$(hostname -f 2>/dev/null || hostname)}>"
arch=$(dpkg --print-architecture)
sed "s/@VERSION@/$version/; s/@MAINTAINER@/$maintainer/; s/@DATE@/$(date -uR -d "@$epoch")/" "$debian/changelog" | gzip -9n >"$work/changelog"
mkdir -p "$work/debian"

put() {  # MODE FILE IN-PACKAGE, into $stage
  install -D -m "$1" "$2" "$stage/$3"
}
begin() {  # PACKAGE COMPONENT...
  stage=$work/$1
  for component in "${@:2}"; do
    DESTDIR=$stage cmake --install "$build" --prefix /usr --component "$component" --strip >/dev/null
  done
  rm -f "$stage/usr/share/doc/octet/LICENSE"
  put 644 "$debian/copyright" "usr/share/doc/$1/copyright"
  put 644 "$work/changelog" "usr/share/doc/$1/changelog.gz"
  mkdir -p "$stage/DEBIAN"
}
libraries_of() {  # ELF: the packages that it needs
  printf 'Source: octet\n\nPackage: octet\nArchitecture: any\n' >"$work/debian/control"
  (cd "$work" && dpkg-shlibdeps -O -e "$1" 2>/dev/null | sed 's/^shlibs:Depends=//')
}
pack() {  # PACKAGE SECTION FIELDS; the description comes from standard input
  cat >"$stage/DEBIAN/control" <<CONTROL
Package: $1
Source: octet
Version: $version
Section: $2
Priority: optional
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -ks "$stage" | cut -f1)
$3
$(cat)
CONTROL
  [ "$1" != octet ] || sed -i '/^Source: /d' "$stage/DEBIAN/control"
  (cd "$stage" && find . -type f -not -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  local package=$out/$1_${version}_$arch.deb
  SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zxz --build "$stage" "$package" >/dev/null
  ls -l "$package"
}

begin octet program
put 644 "$debian/octet.service" lib/systemd/system/octet.service
put 644 "$debian/serve.conf" etc/octet/serve.conf
for page in "$root"/README.md "$root"/configs/*.yaml; do
  [ "${page##*.}" = yaml ] && put 644 "$page" "usr/share/doc/octet/examples/${page##*/}" || put 644 "$page" "usr/share/doc/octet/${page##*/}"
done
python3 "$root/packaging/man_pages.py" "$build/tools/octet" "$stage/usr/share/man/man1" "$(date -u -d "@$epoch" +%F)"
echo /etc/octet/serve.conf >"$stage/DEBIAN/conffiles"
install -m 755 "$debian"/post* "$debian"/prerm "$stage/DEBIAN/"
pack octet science "Depends: $(libraries_of "$stage/usr/bin/octet")
Recommends: libdnnl2" <<'TEXT'
Description: training and serving of transformer language models in FP8
 Octet trains, fine-tunes, evaluates, quantizes and serves transformer language
 models, on CPUs and, where it was built for them, on NVIDIA Hopper GPUs.
 .
 The package has the program, its man pages and completions, and a service
 that serves the model named in /etc/octet/serve.conf; it is not enabled.
TEXT

[ -n "$(find "$build" -maxdepth 1 -name 'liboctet.so*')" ] || exit 0
begin liboctet0 library
library=$(find "$stage" -type f -name 'liboctet.so.*')
echo "liboctet 0 liboctet0 (>= ${version%%+*})" >"$stage/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$stage/DEBIAN/triggers"
pack liboctet0 libs "Depends: $(libraries_of "$library")
Recommends: libdnnl2" <<'TEXT'
Description: serving of transformer language models in FP8 - library
 Octet trains, fine-tunes, evaluates, quantizes and serves transformer language
 models, on CPUs and, where it was built for them, on NVIDIA Hopper GPUs.
 .
 The package has its engine as a shared library.
TEXT

begin liboctet-dev development
put 644 "$root/examples/stream.cc" usr/share/doc/liboctet-dev/examples/stream.cc
put 644 "$root/examples/CMakeLists.txt" usr/share/doc/liboctet-dev/examples/CMakeLists.txt
pack liboctet-dev libdevel "Depends: liboctet0 (= $version)" <<'TEXT'
Description: serving of transformer language models in FP8 - development files
 Octet trains, fine-tunes, evaluates, quantizes and serves transformer language
 models, on CPUs and, where it was built for them, on NVIDIA Hopper GPUs.
 .
 The package has the headers of its engine, and what CMake and pkg-config need.
TEXT
