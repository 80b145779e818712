#!/usr/bin/env bash
# Training time and output of the quickstart after builds of several lengths, with a stub program.
# Usage: quickstart_test.sh SCRIPT
set -euo pipefail
script=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/octet" <<'PROGRAM'
#!/usr/bin/env bash
# Steps take half a second, those in bf16 BF16 seconds.
case $1 in
  train)
    seconds=0.5
    for word in "$@"; do
      case $word in out=*) out=${word#out=} ;; precision.recipe=bf16) seconds=${BF16:-0.5} ;; esac
    done
    mkdir -p "$out"
    for step in 1 2 3; do echo "{\"kind\":\"step\",\"tokens\":2048,\"seconds\":$seconds}" >>"$out/log.jsonl"; done
    echo "train $*" ;;
  eval) echo "tokens 9  loss 1.2345" ;;
esac
PROGRAM
chmod +x "$folder/octet"
echo text >"$folder/text"
shown=""
quickstart() { shown=$(cd "$folder" && OUT=out bash "$script" "$folder/octet" "$folder/text" "$@" 2>&1); }
failed=0
says() { grep -q -e "$1" <<<"$shown" || { printf 'no "%s" in:\n%s\n' "$1" "$shown" >&2; failed=1; }; }
steps() {  # steps LOW HIGH: as many are trained; a few seconds may have passed
  local steps
  steps=$(sed -n 's/^== training: \([0-9]*\) steps.*/\1/p' <<<"$shown")
  [ "$steps" -ge "$1" ] && [ "$steps" -le "$2" ] || { echo "$steps steps, want $1 to $2" >&2; failed=1; }
}
now=$(date +%s)
quickstart
steps 440 440  # 240 s, less 40 steps for evaluations
STARTED=$((now - 313)) quickstart
steps 294 334  # up to 187 s
STARTED=$((now - 450)) quickstart
steps 200 200  # 120 s at least
SECONDS_TO_TRAIN=60 quickstart precision.recipe=bf16
steps 80 80
says "train .*precision.recipe=bf16 .*train.steps=80"
says "^== done: after 80 steps.*loss 1.2345"
! grep -q "fp8-current" <<<"$shown" || { echo "FP8 runs although the recipe is bf16" >&2; failed=1; }
BF16=0.48 quickstart  # no faster than noise
! grep -q "out=out/run.*precision.recipe" <<<"$shown" || { echo "bf16 trains although it is not faster" >&2; failed=1; }
BF16=0.1 quickstart
steps 2360 2360
says "train .*precision.recipe=bf16 .*out=out/run .*train.steps=2360"
says "train .*out=out/fp8 precision.recipe=fp8-current train.steps=40"
exit $failed
