#!/usr/bin/env bash
# GPT-2 124M training steps on this machine's CPUs: Octet, PyTorch and llm.c, one table at the end.
#
#   benchmarks/run_cpu.sh OUT [PEERS]
#
# OUT has one JSON file per measurement. PEERS holds venv/ (Python with torch and numpy) and llm.c/ (a checkout of
# https://github.com/karpathy/llm.c); missing ones are left out of the table. Environment variables:
#   OCTET_BENCH  the program                    (build/tools/octet-bench of this checkout)
#   PREFIX       command before each one        (such as "taskset -c 0,1")
#   STEPS        timed steps of a measurement   (5)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "${1:?usage: run_cpu.sh OUT [PEERS]}" && cd "$1" && pwd)
peers=${2:+$(cd "$2" && pwd)}
bench=${OCTET_BENCH:-$here/../build/tools/octet-bench}
steps=${STEPS:-5}
prefix=${PREFIX:-}
shapes=("4 64" "1 1024")

$prefix "$bench" gemm --json "$out/gemm.json"
$prefix "$bench" copy --json "$out/copy.json"
for shape in "${shapes[@]}"; do
  read -r batch length <<<"$shape"
  for recipe in fp32 bf16 fp8-current fp8-delayed fp8-block; do
    $prefix "$bench" train-step --model gpt2-124m --batch "$batch" --length "$length" --recipe "$recipe" \
      --steps "$steps" --profile --json "$out/octet_${recipe}_$length.json"
  done
done

python=$peers/venv/bin/python
if [ -n "$peers" ] && [ -x "$python" ]; then
  $prefix "$python" "$here/torch_gemm.py" --json "$out/torch_gemm.json"
  for shape in "${shapes[@]}"; do
    read -r batch length <<<"$shape"
    for dtype in fp32 bf16; do
      for compile in "" --compile; do
        $prefix "$python" "$here/torch_gpt2_step.py" --batch "$batch" --length "$length" --dtype "$dtype" \
          --steps "$steps" $compile --json "$out/torch${compile#-}_${dtype}_$length.json" ||
          echo "PyTorch $dtype $compile at length $length did not run"
      done
    done
  done
fi

# llm.c fixes batch and length in main(): one program per shape. Its flags are its Makefile's, with gcc and OpenMP.
if [ -n "$peers" ] && [ -f "$peers/llm.c/train_gpt2.c" ] && [ -x "$python" ]; then
  cd "$peers/llm.c"
  [ -f gpt2_124M.bin ] || "$python" "$here/make_llmc_inputs.py" .
  for shape in "${shapes[@]}"; do
    read -r batch length <<<"$shape"
    sed -e "s/int B = 4;/int B = $batch;/" -e "s/int T = 64;/int T = $length;/" train_gpt2.c >"train_gpt2_$length.c"
    gcc -O3 -Ofast -march=native -fopenmp -DOMP -Wno-unused-result "train_gpt2_$length.c" -lm -o "train_gpt2_$length"
    # The first steps are enough; closing the pipe ends the program.
    { $prefix stdbuf -oL "./train_gpt2_$length" || true; } | grep --line-buffered '^step' |
      head -n "$((steps + 1))" >"$out/llmc_$length.txt" || true
  done
fi

python3 "$here/cpu_table.py" "$out"
