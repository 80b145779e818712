#!/usr/bin/env bash
# The header with the commit follows HEAD, is not rewritten while HEAD is unchanged, and says "unknown" for an archive, also
# for one inside another repository. Usage: build_commit_test.sh CMAKE SCRIPT
set -euo pipefail
cmake=$1 script=$2
command -v git >/dev/null || { echo "no git here"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
header=$folder/build_commit.h
named() { "$cmake" -DSOURCE="$1" -DHEADER="$header" -P "$script" && sed -n 's/^#define OCTET_COMMIT "\(.*\)"$/\1/p' "$header"; }
expect() { [ "$1" = "$2" ] || { echo "named '$1', want '$2'" >&2; exit 1; }; }
tree=$folder/tree
git init -q "$tree"
commit() {
  echo "$1" >"$tree/file"
  git -C "$tree" add file
  git -C "$tree" -c user.name=t -c user.email=t@localhost -c commit.gpgsign=false commit -qm "$1"
}
head() { git -C "$tree" rev-parse --short=12 HEAD; }
commit one
first=$(head)
expect "$(named "$tree")" "$first"
touch -d "2001-01-01" "$header"
expect "$(named "$tree")" "$first"
expect "$(stat -c %y "$header" | cut -c 1-4)" 2001  # not written again
commit two
expect "$(named "$tree")" "$(head)"
git -C "$tree" -c user.name=t -c user.email=t@localhost tag -a -m tag v9
expect "$(named "$tree")" "$(head)"  # the hash, whatever is tagged
echo changed >"$tree/file"
expect "$(named "$tree")" "$(head)-dirty"
mkdir "$tree/inside" "$folder/archive"
expect "$(named "$tree/inside")" unknown
expect "$(named "$folder/archive")" unknown
