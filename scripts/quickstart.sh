#!/usr/bin/env bash
# Octet's main workflow end to end: text -> tokenizer -> tokens -> training (FP8) -> evaluation -> generated text.
# Usage: scripts/quickstart.sh OCTET [TEXT [SETTINGS...]]   (TEXT: a file or folder; "": the C++ library's headers;
# SETTINGS: key=value words that override configs/quickstart.yaml)
# Writes out/quickstart, which is emptied first, or OUT. The number of training steps is chosen for the machine: as many as
# fit SECONDS_TO_TRAIN with evaluations, at the speed of a few trial steps, at most the 2400 of configs/quickstart.yaml.
# By default SECONDS_TO_TRAIN is what the build and earlier steps left of 500 seconds since STARTED (seconds since 1970;
# default: now), between 120 and 240, so that everything takes less than 9 minutes.
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
rm -rf "$out/tokenizer" "$out/run" "$out/trial" "$out"/corpus_*
step "tokenizer: byte-level BPE of 2048 tokens from $text"
"$octet" tokenizer train --vocab-size 2048 --out "$out/tokenizer" "$text"
step "data"
"$octet" data --tokenizer "$out/tokenizer" --split 0.95,0.05 --split-by "$split_by" --out "$out/corpus" "$text"
train() { "$octet" train configs/quickstart.yaml data.train="$out/corpus_train" "${settings[@]}" "$@"; }
step "speed"
trial=8
train out="$out/trial" train.steps=$trial log.interval=1 >"$out/trial.log" 2>&1 || { cat "$out/trial.log" >&2; exit 1; }
left=$((500 - ($(date +%s) - started)))
seconds=${SECONDS_TO_TRAIN:-$((left < 120 ? 120 : left > 240 ? 240 : left))}
steps=$(sed -n 's/.*"tokens":\([0-9]*\).*"seconds":\([0-9.e-]*\).*/\2/p' "$out/trial/log.jsonl" | sort -g |
  awk -v budget="$seconds" -v evaluations=40 '{ t[NR] = $1 } END {  # what these cost, in steps
    n = NR ? int(budget / t[int((NR + 1) / 2)]) - evaluations : 2400; print (n > 2400 ? 2400 : (n < 50 ? 50 : n)) }')
if grep -q "no AMX-BF16" "$out/trial.log"; then
  echo "FP8 is slow on these cores; quicker: make quickstart SETTINGS=precision.recipe=bf16"
fi
step "training: $steps steps in about $seconds s"
train data.validation="$out/corpus_val" out="$out/run" train.steps="$steps" optimizer.warmup_steps=$((steps / 20 + 1)) \
  eval.interval=$(((steps + 2) / 3)) checkpoint.interval="$steps"
step "evaluation"
reached=$("$octet" eval "$out/run" --data "$out/corpus_val" --max-tokens 65536)
echo "$reached"
step "generation"
"$octet" generate "$out/run" --prompt "$prompt" --max-tokens 200 --temperature 0.7 --top-k 40 --stats
step "done: after $steps steps, on text not learnt from: $reached"
echo "checkpoints in $out/run/checkpoints; more text: $octet generate $out/run --prompt '...'"
