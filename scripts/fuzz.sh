#!/usr/bin/env bash
# Builds the libFuzzer targets (clang) and runs each for some seconds, from the corpus of earlier runs and, if test
# data is available, from real files. A finding stops the run, and its input is kept with the corpus.
# Usage: scripts/fuzz.sh [SECONDS] [TARGET...]      TARGET: safetensors, dataset, tokenizer_json, sentencepiece, text, settings ...
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
wanted=("$@")
bash scripts/setup.sh fuzz
mkdir -p build/fuzz
clang=$(command -v clang++ || ls /usr/bin/clang++-* | sort -V | tail -n 1)
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER="$clang" -DOCTET_FUZZ=ON -DOCTET_TESTS=OFF \
  -DOCTET_WERROR=OFF >build/fuzz/configure.log 2>&1 || { cat build/fuzz/configure.log >&2; exit 1; }
ninja -C build/fuzz octet_fuzzers
data=${OCTET_TEST_DATA:-../shared/data}
for program in build/fuzz/src/*/octet_*_fuzz build/fuzz/src/*/*/octet_*_fuzz; do
  [ -x "$program" ] || continue
  name=$(basename "$program" _fuzz)
  name=${name#octet_}
  if [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $name "* ]]; then continue; fi
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus"
  case $name in  # small real files to start from
    safetensors) seeds=$(find "$data" -name '*.safetensors' -size -64k 2>/dev/null || true) ;;
    tokenizer_json) seeds=$(find src/io/testdata "$data" -name 'tokenizer.json' -size -64k 2>/dev/null || true) ;;
    sentencepiece) seeds=$(git ls-files '*/tokenizer.model') ;;
    dataset) seeds=$(find "$data" -name '*.idx' -size -64k 2>/dev/null || true) ;;
    settings) seeds=$(ls configs/*.yaml) ;;
    text) seeds=$(git ls-files '*/testdata/*.txt') ;;
    request)  # what official clients send, and each of their bodies to each route
      rm -rf build/fuzz/seeds && mkdir build/fuzz/seeds
      python3 - <<'SEEDS'
import pathlib
rest, seeds = pathlib.Path("src/serve/testdata/clients.bin").read_bytes(), []
while rest:
    size, _, rest = rest.partition(b"\n")
    request, rest = rest[:int(size)], rest[int(size) + 1:]
    body = request.partition(b"\r\n\r\n")[2]
    seeds += [request] + [bytes([route]) + body for route in range(24 if body else 0)]
for number, seed in enumerate(seeds):
    pathlib.Path(f"build/fuzz/seeds/{number}").write_bytes(seed)
SEEDS
      seeds=$(ls build/fuzz/seeds/*) ;;
    *) seeds="" ;;
  esac
  for seed in $seeds; do cp -f "$seed" "$corpus/seed_$(sha1sum "$seed" | cut -c1-12)"; done
  echo "== $name: $seconds s, $(find "$corpus" -type f | wc -l) inputs to start from"
  "$program" -max_total_time="$seconds" -rss_limit_mb=4096 -print_final_stats=1 -print_funcs=0 \
    -artifact_prefix="build/fuzz/corpus/$name-" "$corpus" >"build/fuzz/$name.log" 2>&1 \
    || { tail -n 40 "build/fuzz/$name.log" >&2; echo "$name: found a fault; its input is build/fuzz/corpus/$name-*" >&2; exit 1; }
  grep -E "units:|cov:" "build/fuzz/$name.log" | tail -n 2
done
