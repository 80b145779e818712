#!/usr/bin/env bash
# Two GPUs against one, and against PyTorch and llm.c: exchanges alone, training, whole models, serving, in one run with the
# medians at the end.
#
#   benchmarks/run_ranks.sh OUT
#
# OUT has one text file per measurement; failed ones are named. Environment variables:
#   BUILD   the build folder, built with -DOCTET_CUDA=ON           (build/cuda of this checkout)
#   PYTHON  Python with torch; "" leaves PyTorch out               (python3)
#   LLMC    a checkout of https://github.com/karpathy/llm.c, built there if needed; unset leaves it out
#   ONLY    names of measurements or of their beginnings, in turn  (all)
#   LIMIT   seconds a measurement may take                         (200)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "${1:?usage: run_ranks.sh OUT}" && cd "$1" && pwd)
tools=${BUILD:-$here/../build/cuda}/tools
python=${PYTHON-python3}
limit=${LIMIT:-200}

wanted() {
  [ -z "${ONLY:-}" ] && return 0
  for only in $ONLY; do [[ $1 == "$only"* ]] && return 0; done
  return 1
}
run() {  # NAME WHAT-TO-SHOW COMMAND...
  local name=$1 show=$2
  shift 2
  wanted "$name" || return 0
  timeout -s KILL "$limit" "$@" >"$out/$name.txt" 2>&1 || { echo "$name did not run:" && tail -n 3 "$out/$name.txt"; }
  grep -hE "$show" "$out/$name.txt" | sed "s/^/$name: /" >>"$out/table.txt"
}
step() {
  local name=$1
  shift
  run "$name" "^step:" "$tools/octet-bench" train-step --device cuda "$@"
}
peer() {
  local name=$1
  shift
  [ -z "$python" ] || run "$name" "^PyTorch" "$python" -m torch.distributed.run --nproc-per-node 2 \
    "$here/torch_ranks_step.py" --limit "$limit" "$@"
}
llmc() {
  local name=$1
  shift
  [ -z "${LLMC:-}" ] || run "$name" "^llm.c" "${python:-python3}" "$here/llmc_gpu_step.py" "$LLMC" "$@"
}
latency() {
  local name=$1
  shift
  run "$name" "TTFT|ITL" "$tools/octet" bench latency "$@" --random-weights --recipe fp8-current --kv-cache e4m3
}

rm -f "$out/table.txt"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$out/device.txt"
run exchanges "us|_" "$tools/octet-bench" exchanges
layers="--model llama2-7b --layers 8 --batch 2 --length 4096 --steps 8 --warmup 3"
for recipe in fp8-current bf16; do
  # shellcheck disable=SC2086
  {
    step "layers_one_$recipe" $layers --recipe "$recipe"
    step "layers_tp2_$recipe" $layers --recipe "$recipe" --tensor 2 --sequence
    for level in gradients optimizer parameters; do
      step "layers_dp2_${level}_$recipe" $layers --recipe "$recipe" --data 2 --micro-batches 2 --shard "$level"
    done
  }
done
peer torch_tp2_bf16 --mode tp
peer torch_tp2_fp8 --mode tp --fp8
peer torch_dtensor_bf16 --mode dtensor
peer torch_dtensor_async_bf16 --mode dtensor --async-tp
peer torch_fsdp2_bf16 --mode fsdp2
peer torch_fsdp2_fp8 --mode fsdp2 --fp8
whole="--model llama2-7b --batch 1 --length 4096 --micro-batches 16 --steps 5 --warmup 2"
# shellcheck disable=SC2086
step 7b_one_fp8-current $whole --recipe fp8-current
for recipe in fp8-current bf16; do
  # shellcheck disable=SC2086
  {
    step "7b_dp2_$recipe" $whole --recipe "$recipe" --data 2 --shard optimizer
    step "7b_pp2_$recipe" $whole --recipe "$recipe" --pipeline 2
    step "7b_pp2_chunks_$recipe" $whole --recipe "$recipe" --pipeline 2 --chunks 2
  }
done
# shellcheck disable=SC2086
{
  peer torch_7b_pp2_bf16 --mode pp $whole
  peer torch_7b_pp2_chunks_bf16 --mode pp --chunks 2 $whole
  peer torch_7b_fsdp2_bf16 --mode fsdp2 $whole
}
gpt2="--model gpt2-1558m --batch 16 --length 1024"
# shellcheck disable=SC2086
{
  step gpt2_one_bf16 $gpt2 --recipe bf16 --steps 15 --warmup 3
  for level in optimizer gradients; do
    step "gpt2_dp2_${level}_bf16" $gpt2 --recipe bf16 --steps 15 --warmup 3 --data 2 --micro-batches 2 --shard "$level"
  done
  llmc llmc_gpt2_one_bf16 $gpt2
  llmc llmc_gpt2_dp2_bf16 $gpt2 --ranks 2
}
step 13b_tp2 --model llama2-13b --batch 1 --length 4096 --micro-batches 8 --recipe fp8-current --steps 5 --warmup 2 \
  --tensor 2 --sequence
for ranks in 1 2; do
  latency "8b_$ranks" llama3-8b -i 128 -o 256 -n 6 --tensor "$ranks"
  latency "70b_$ranks" llama3-70b -i 2048 -o 64 -n 3 --max-sequences 4 --tensor "$ranks"
  latency "70b_64_$ranks" llama3-70b -i 1024 -o 128 -n 64 --concurrency 64 --warmup 0 --max-sequences 64 --tensor "$ranks"
done
cat "$out/table.txt"
