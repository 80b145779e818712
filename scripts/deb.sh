#!/usr/bin/env bash
# Packs a built program as a Debian package: scripts/deb.sh BUILD OUT makes OUT/octet_VERSION_ARCH.deb. It depends on the
# packages of the program's libraries; the version ends in the commit's date. DEBFULLNAME and DEBEMAIL name its maintainer.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd) out=$(mkdir -p "$2" && cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage debian=$root/packaging/debian
DESTDIR=$stage cmake --install "$build" --prefix /usr --component program --strip >/dev/null
epoch=$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)
version=$("$build/tools/octet" --version | awk 'NR == 1 {print $2}')+$(date -u -d "@$epoch" +%Y%m%d)
maintainer="${DEBFULLNAME:-The Octet authors} <${DEBEMAIL:-$(id -un)@$(hostname -f 2>/dev/null || hostname)}>"
put() {  # MODE FILE IN-PACKAGE
  install -D -m "$1" "$2" "$stage/$3"
}
put 644 "$debian/octet.service" lib/systemd/system/octet.service
put 644 "$debian/serve.conf" etc/octet/serve.conf
put 644 "$debian/copyright" usr/share/doc/octet/copyright
rm -f "$stage/usr/share/doc/octet/LICENSE"
sed "s/@VERSION@/$version/; s/@MAINTAINER@/$maintainer/; s/@DATE@/$(date -uR -d "@$epoch")/" "$debian/changelog" | gzip -9n >"$work/changelog"
put 644 "$work/changelog" usr/share/doc/octet/changelog.gz
for page in "$root"/README.md "$root"/configs/*.yaml; do
  [ "${page##*.}" = yaml ] && put 644 "$page" "usr/share/doc/octet/examples/${page##*/}" || put 644 "$page" "usr/share/doc/octet/${page##*/}"
done
python3 "$root/packaging/man_pages.py" "$build/tools/octet" "$stage/usr/share/man/man1" "$(date -u -d "@$epoch" +%F)"
mkdir -p "$work/debian" "$stage/DEBIAN"
printf 'Source: octet\n\nPackage: octet\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O -e "$stage/usr/bin/octet" 2>/dev/null | sed 's/^shlibs:Depends=//')
cat >"$stage/DEBIAN/control" <<CONTROL
Package: octet
Version: $version
Section: science
Priority: optional
Architecture: $(dpkg --print-architecture)
Maintainer: $maintainer
Installed-Size: $(du -ks "$stage" | cut -f1)
Depends: $depends
Recommends: libdnnl2
Description: training and serving of transformer language models in FP8
 Octet trains, fine-tunes, evaluates, quantizes and serves transformer language
 models, on CPUs and, where it was built for them, on NVIDIA Hopper GPUs.
 .
 The package has the program, its man pages and completions, and a service
 that serves the model named in /etc/octet/serve.conf; it is not enabled.
CONTROL
echo /etc/octet/serve.conf >"$stage/DEBIAN/conffiles"
install -m 755 "$debian"/post* "$debian"/prerm "$stage/DEBIAN/"
(cd "$stage" && find . -type f -not -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
package=$out/octet_${version}_$(dpkg --print-architecture).deb
SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zxz --build "$stage" "$package" >/dev/null
ls -l "$package"
