#!/usr/bin/env bash
# compute-sanitizer over a test program on the GPU: memcheck of every kernel; racecheck and synccheck of our own.
#
#     scripts/sanitize_gpu.sh PROGRAM [OUT]       PROGRAM: octet_kernels_cuda_test; logs go to OUT
#
# The tests are split into SHARDS processes for each of TOOLS, JOBS of them at a time on the one GPU; FILTER is GoogleTest's.
# Source lines in reports: build with -DOCTET_CUDA_LINEINFO=ON.
# Prints a row per tool; exit status 1 unless all tests of all processes passed and the tool's summaries have no error.
#
# Excluded: kernels of cuBLASLt and cuDNN under racecheck and synccheck (these tools fail on them), with the tests that need
# them (fusions of products; the other fusions have tests of their own); paged
# prefill under synccheck, whose copying and multiplying threads meet at one barrier from two places, as PTX allows;
# allocations that libraries never free, and initcheck (the tests fill every buffer before a kernel sees it: results and
# scratch with NaNs, so that a value read before it is written fails its test).
set -euo pipefail
program=$(realpath "${1:?usage: scripts/sanitize_gpu.sh PROGRAM [OUT]}")
out=${2:-out/sanitize}
export JOBS=${JOBS:-$(nproc)} SHARDS=${SHARDS:-32} TOOLS=${TOOLS:-racecheck synccheck memcheck} FILTER=${FILTER:-*}
export LIMIT=${LIMIT:-900} # seconds a process may take
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "compute-sanitizer is not here: it comes with the CUDA toolkit" >&2; exit 2; }
rm -rf "$out"
mkdir -p "$out"
export program out sanitizer OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

run_shard() { # TOOL SHARD
  local log="$out/$1.$2.log" own=() started=$SECONDS filter=$FILTER
  if [ "$1" != memcheck ]; then
    own=(--kernel-name kns=octet)
    export OCTET_TEST_OWN_KERNELS=1
    [[ $filter == *-* ]] && filter+=: || filter+=-
    filter+="GemmTuning*:CudaConformanceRows*:CudnnDropout*:*EveryRowAgrees*/fusion*"
    [ "$1" = racecheck ] || filter+=":*EveryRowAgrees*/paged*:Decode.*"
  fi
  GTEST_TOTAL_SHARDS=$SHARDS GTEST_SHARD_INDEX=$2 timeout -k 5 "$LIMIT" "$sanitizer" --tool "$1" "${own[@]}" \
    --report-api-errors no --require-cuda-init no --error-exitcode 9 --print-limit 20 \
    "$program" --gtest_filter="$filter" > "$log" 2>&1
  echo "exit $? after $((SECONDS - started)) s" >> "$log"
}
export -f run_shard
for tool in $TOOLS; do
  for ((shard = 0; shard < SHARDS; ++shard)); do echo "$tool $shard"; done
done | xargs -P "$JOBS" -L 1 bash -c 'run_shard "$0" "$1"'

bad=0 table=""
count() { { grep -oE "$1" "$2" || true; } | { grep -oE '[0-9]+' || true; } | awk '{ sum += $1 } END { print sum + 0 }'; }
for tool in $TOOLS; do
  tests=0 skipped=0 failed=0 reports=0 unfinished=0
  for log in "$out/$tool".*.log; do
    found=$(count '(ERROR|RACECHECK) SUMMARY: [0-9]+' "$log")
    reports=$((reports + found))
    tests=$((tests + $(count '\[  PASSED  \] [0-9]+ test' "$log")))
    skipped=$((skipped + $(count '\[  SKIPPED \] [0-9]+ test' "$log")))
    failed=$((failed + $(count '\[  FAILED  \] [0-9]+ test' "$log")))
    # A process without a final summary of success counts as failed.
    grep -q 'SUMMARY: ' "$log" && grep -q '\[==========\].* ran\.' "$log" || unfinished=$((unfinished + 1))
    if ! grep -q '^exit 0 ' "$log" || [ "$found" != 0 ]; then
      bad=1
      echo "$log: $(tail -1 "$log")"
      { grep -E -m 6 '=========.*(Invalid|reported|Barrier|Error|hit)|\[  FAILED  \]' "$log" || true; } | cut -c1-220
    fi
  done
  table+=$(printf '%-10s %6d %8d %8d %8d %10d' "$tool" "$tests" "$skipped" "$failed" "$reports" "$unfinished")$'\n'
  [ "$failed$reports$unfinished" = 000 ] && [ "$tests" -gt 0 ] || bad=1
done
printf '%-10s %6s %8s %8s %8s %10s\n%s' tool tests skipped failed reports unfinished "$table"
echo "$SECONDS s; logs: $out"
exit $bad
