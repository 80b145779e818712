#!/usr/bin/env bash
# Octet's main workflow end to end: text -> tokenizer -> tokens -> training -> evaluation -> generated text. Trains in FP8, or
# in bf16 where trial steps are faster (cores without AMX) and SETTINGS name no recipe; FP8 is then a short run of its own.
# Usage: scripts/quickstart.sh OCTET [TEXT [SETTINGS...]]   (TEXT: a file or folder; "": the C++ library's headers;
# SETTINGS: key=value words that override configs/quickstart.yaml)
# Writes out/quickstart, which is emptied first, or OUT. The number of training steps is chosen for the machine: as many as
# fit SECONDS_TO_TRAIN with evaluations, at the speed of a few trial steps, at most the 2400 of configs/quickstart.yaml.
# By default SECONDS_TO_TRAIN is what the build and earlier steps left of 500 seconds since STARTED (seconds since 1970;
# default: now), between 120 and 240, so that everything takes about 10 minutes on two cores.
set -euo pipefail
octet=$1
text=${2:-}
settings=("${@:3}")
out=${OUT:-out/quickstart}
started=${STARTED:-$(date +%s)}
prompt=""
if [ -z "$text" ]; then
  prompt="template <typename T>"
  text=$(ls -d /usr/include/c++/* 2>/dev/null | sort -V | tail -n 1)
  [ -n "$text" ] || { echo "no C++ headers here: give a text with make quickstart TEXT=path" >&2; exit 1; }
fi
[ -e "$text" ] || { echo "TEXT=$text: no such file or folder" >&2; exit 1; }
split_by=documents  # a document is a file; one file alone is split where its last twentieth begins
[ -d "$text" ] || split_by=tokens
step() { printf '\n== %s (%d s)\n' "$1" $(($(date +%s) - started)); }
mkdir -p "$out"
rm -rf "$out/tokenizer" "$out/run" "$out/trial" "$out/fp8" "$out"/corpus_*
step "tokenizer: byte-level BPE of 2048 tokens from $text"
"$octet" tokenizer train --vocab-size 2048 --out "$out/tokenizer" "$text"
step "data"
"$octet" data --tokenizer "$out/tokenizer" --split 0.95,0.05 --split-by "$split_by" --out "$out/corpus" "$text"
train() { "$octet" train configs/quickstart.yaml data.train="$out/corpus_train" "${settings[@]}" "$@"; }
step "speed"
# The median seconds of a few steps under some settings.
trial() {
  train out="$out/trial" train.steps=8 log.interval=1 "$@" >"$out/trial.log" 2>&1 || { cat "$out/trial.log" >&2; exit 1; }
  sed -n 's/.*"tokens":\([0-9]*\).*"seconds":\([0-9.e-]*\).*/\2/p' "$out/trial/log.jsonl" | sort -g |
    awk '{ t[NR] = $1 } END { if (NR) print t[int((NR + 1) / 2)] }'
  rm -rf "$out/trial"
}
per_step=$(trial)
fp8_steps=0  # of a short run in FP8 beside one in bf16
if ! grep -q "precision.recipe=" <<<"${settings[*]-}"; then
  in_bf16=$(trial precision.recipe=bf16)
  echo "a step takes $per_step s in FP8, $in_bf16 s in bf16"
  if awk "BEGIN { exit !(1.1 * ${in_bf16:-1} < ${per_step:-0}) }"; then
    echo "bf16 is faster here and trains the model; FP8 is shown by a short run of its own"
    fp8_steps=$(awk "BEGIN { n = int(20 / $per_step); print (n > 40 ? 40 : n < 5 ? 5 : n) }")
    settings+=(precision.recipe=bf16)
    per_step=$in_bf16
  fi
fi
left=$((500 - ($(date +%s) - started) - (fp8_steps > 0 ? 20 : 0)))
seconds=${SECONDS_TO_TRAIN:-$((left < 120 ? 120 : left > 240 ? 240 : left))}
steps=$(awk -v step="${per_step:-0}" -v budget="$seconds" -v evaluations=40 'BEGIN {  # what these cost, in steps
    n = step > 0 ? int(budget / step) - evaluations : 2400; print (n > 2400 ? 2400 : (n < 50 ? 50 : n)) }')
step "training: $steps steps in about $seconds s"
train data.validation="$out/corpus_val" out="$out/run" train.steps="$steps" optimizer.warmup_steps=$((steps / 20 + 1)) \
  eval.interval=$(((steps + 2) / 3)) checkpoint.interval="$steps"
step "evaluation"
reached=$("$octet" eval "$out/run" --data "$out/corpus_val" --max-tokens 65536)
echo "$reached"
step "generation"
"$octet" generate "$out/run" --prompt "$prompt" --max-tokens 200 --temperature 0.7 --top-k 40 --stats
if [ "$fp8_steps" -gt 0 ]; then
  step "FP8: $fp8_steps steps of a new run"
  train out="$out/fp8" precision.recipe=fp8-current train.steps="$fp8_steps" optimizer.warmup_steps=2 log.interval=5
fi
step "done: after $steps steps, on text not learnt from: $reached"
echo "checkpoints in $out/run/checkpoints; more text: $octet generate $out/run --prompt '...'"
