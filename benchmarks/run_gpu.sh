#!/usr/bin/env bash
# Training steps on one GPU: every recipe compared with Transformer Engine in the same recipe, PyTorch in bf16 and FP8, and
# llm.c for GPT-2, in one run with one table at the end.
#
#   benchmarks/run_gpu.sh OUT
#
# OUT has one JSON file per measurement; failed ones are named and left out of the table. Environment variables:
#   OCTET_BENCH  the program, built with -DOCTET_CUDA=ON   (build/tools/octet-bench of this checkout)
#   PYTHON       Python with torch; "" leaves PyTorch out   (python3)
#   TE           Python with transformer_engine             ($PYTHON; "" leaves it out)
#   LLMC         a checkout of https://github.com/karpathy/llm.c, built there if needed; unset leaves it out
#   PEER         more options of torch_gpu_step.py          ("", or "--attention cudnn --optimizer compiled")
#   MODELS       subset of the shapes below                 (all)
#   RECIPES      subset of recipes                          (bf16 fp8-current fp8-delayed fp8-block)
#   STEPS        timed steps of a measurement               (15)
#   LIMIT        seconds a measurement may take             (300)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "${1:?usage: run_gpu.sh OUT}" && cd "$1" && pwd)
bench=${OCTET_BENCH:-$here/../build/tools/octet-bench}
python=${PYTHON-python3}
steps=${STEPS:-15}
limit=${LIMIT:-300}
te=${TE-$python}
llmc=${LLMC:-}
llmc_step=("${python:-python3}" "$here/llmc_gpu_step.py")

shape_of() {  # words of octet-bench train-step
  case $1 in
    gpt3-5b-8layers) echo --model gpt3-5b --layers 8 --batch 4 --length 2048 ;;
    llama2-7b-8layers) echo --model llama2-7b --layers 8 --batch 2 --length 4096 ;;
    gpt2-1558m) echo --model gpt2-1558m --batch 16 --length 1024 ;;
    gpt2-124m) echo --model gpt2-124m --batch 16 --length 1024 ;;
    *) echo "run_gpu.sh: no shape is named $1" >&2 && return 1 ;;
  esac
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1 >"$out/device.txt"
[ -z "$llmc" ] || "${llmc_step[@]}" "$llmc" --build-only >"$out/llmc_build.txt" 2>&1 ||
  { echo "llm.c was not built:" && tail -n 3 "$out/llmc_build.txt" && llmc=; }
[ -z "$te" ] || "$te" -c "import transformer_engine.pytorch" >"$out/te_import.txt" 2>&1 ||
  { echo "Transformer Engine is not there:" && tail -n 1 "$out/te_import.txt" && te=; }
for model in ${MODELS:-gpt3-5b-8layers llama2-7b-8layers gpt2-1558m gpt2-124m}; do
  shape=$(shape_of "$model") || exit 1
  for recipe in ${RECIPES:-bf16 fp8-current fp8-delayed fp8-block}; do
    # shellcheck disable=SC2086
    timeout "$limit" "$bench" train-step --device cuda $shape --recipe "$recipe" --steps "$steps" --profile \
      --json "$out/octet_${model}_$recipe.json" >"$out/octet_${model}_$recipe.txt" 2>&1 ||
      { echo "octet $model $recipe did not run:" && tail -n 3 "$out/octet_${model}_$recipe.txt"; }
    [ -z "$te" ] || timeout "$limit" "$te" "$here/te_gpu_step.py" --model "$model" --recipe "$recipe" --steps "$steps" \
      --json "$out/te_${model}_$recipe.json" >"$out/te_${model}_$recipe.txt" 2>&1 ||
      { echo "Transformer Engine $model $recipe did not run:" && tail -n 3 "$out/te_${model}_$recipe.txt"; }
  done
  if [ -n "$llmc" ] && [[ $model == gpt2-* ]]; then
    timeout "$limit" "${llmc_step[@]}" "$llmc" --model "$model" --steps "$steps" \
      --json "$out/llmc_${model}_bf16.json" >"$out/llmc_${model}_bf16.txt" 2>&1 ||
      { echo "llm.c $model did not run:" && tail -n 3 "$out/llmc_${model}_bf16.txt"; }
  fi
  [ -z "$python" ] && continue
  for dtype in bf16 fp8; do
    # shellcheck disable=SC2046,SC2086
    timeout "$limit" "$python" "$here/torch_gpu_step.py" --model "$model" --steps "$steps" \
      $([ "$dtype" = fp8 ] && echo --fp8) ${PEER:-} --json "$out/torch_${model}_$dtype.json" \
      >"$out/torch_${model}_$dtype.txt" 2>&1 ||
      { echo "PyTorch $model $dtype did not run:" && tail -n 3 "$out/torch_${model}_$dtype.txt"; }
  done
done

python3 "$here/gpu_table.py" "$out"
