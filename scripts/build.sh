#!/usr/bin/env bash
# Configures and builds one folder, printing the seconds it took. Usage: scripts/build.sh FOLDER JOBS [cmake options]
set -euo pipefail
folder=$1 jobs=$2
shift 2
mkdir -p "$folder"
started=$(date +%s)
cmake -S . -B "$folder" -G Ninja "$@" >"$folder/configure.log" 2>&1 || { cat "$folder/configure.log" >&2; exit 1; }
NINJA_STATUS='[%f/%t %es] ' ninja -C "$folder" -j "$jobs"
echo "built $folder in $(($(date +%s) - started)) s with $jobs jobs"
