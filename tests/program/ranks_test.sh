#!/usr/bin/env bash
# The same run on ranks as threads, as processes of torchrun's variables, and under mpirun where it is: the same files.
# Then ranks are killed: the others end, naming one, and a run with parallel.restarts goes on, also with fewer.
# Usage: ranks_test.sh OCTET TEXT
set -euo pipefail
octet=$(realpath "$1") text=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
head -c 60000 "$text" >text
"$octet" tokenizer train --vocab-size 300 --out tok text >/dev/null 2>&1
"$octet" data --tokenizer tok --out corpus text >/dev/null 2>&1
train=("$octet" train train.device=cpu train.threads=1 data.train=corpus data.sequence_length=32 model.size=gpt2-nano
  model.layers=2 model.hidden=64 model.heads=4 train.micro_batch=1 train.global_batch=4 eval.interval=0 parallel.data=2
  parallel.shard=optimizer)
pids=()
ranks() {  # ranks COUNT SETTINGS...: in the background, as torchrun starts them; their logs are rank_N.log
  local count=$1 number
  shift
  port=$((port + 1)) pids=()
  for ((number = 0; number < count; ++number)); do
    RANK=$number WORLD_SIZE=$count LOCAL_RANK=$number LOCAL_WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      OCTET_TOKEN=$$ exec timeout 300 "${train[@]}" "$@" >"rank_$number.log" 2>&1 &
    pids+=($!)
  done
}
all_end_well() { for pid in "${pids[@]}"; do wait "$pid" || { tail -n 3 rank_*.log >&2; exit 1; }; done; }
says() { tr '\r' '\n' <"$1" | grep -q "$2" || { echo "$1 does not say '$2'" >&2; tail -n 5 "$1" >&2; exit 1; }; }
same() { for file in model optimizer scales; do cmp threads/checkpoints/step_00000006/$file.safetensors "$1/checkpoints/step_00000006/$file.safetensors"; done; }
until_step() { until grep -q "\"step\":$2[,}]" "$1/log.jsonl" 2>/dev/null; do sleep 0.1; done; }
port=$((20000 + $$ % 9000))

"${train[@]}" train.steps=6 out=threads >/dev/null 2>&1
ranks 2 train.steps=6 out=processes
all_end_well
same processes
mpi=
if command -v mpirun >/dev/null && [ -f "$(dirname "$octet")/liboctet_mpi.so" ]; then
  mpi=1
  mpirun -n 2 --oversubscribe "${train[@]}" train.steps=6 out=mpi >/dev/null 2>&1
  same mpi
fi

# What is left of three ranks are two; the third leaves while the others run. The setting stays as it is written.
ranks 3 train.steps=6 out=left parallel.data=0
all_end_well
same left
says rank_2.log "rank 2 of 3 has nothing to do and exits: 3 ranks (variables): parallel.data=2, the largest number that divides the 4"
says left/config.yaml "data: 0"
says left/log.jsonl "parallel.tensor=1 parallel.data=2 parallel.context=1"
ranks 2 train.steps=2 out=alone parallel.data=0 train.global_batch=0
all_end_well
says rank_0.log "2 ranks (variables): parallel.data=1, the largest number that divides the 1 micro-batches of a step; 1 left over"
ranks 4 train.steps=7 out=left parallel.data=0
all_end_well
says rank_0.log "resumed from left/checkpoints/step_00000006"
says rank_0.log "settings changed since: train.steps 6 -> 7$"
says left/log.jsonl "parallel.data=4"
if [ -n "$mpi" ]; then
  mpirun -n 3 --oversubscribe "${train[@]}" train.steps=6 out=left_mpi parallel.data=0 >/dev/null 2>&1
  same left_mpi
fi
! "${train[@]}" train.steps=6 out=none parallel.data=0 >none.log 2>&1
says none.log "parallel.data=0 takes what is left of a launcher's ranks or of the usable GPUs"
! "$octet" plan model.size=gpt2-nano parallel.data=0 >plan.log 2>&1
says plan.log "set it to a number"

# One of four is killed: the others end, naming it. Three go on with two, where settings allow it.
ranks 4 train.steps=100000 out=lost parallel.data=4 parallel.restarts=1 checkpoint.interval=1 log.interval=1
until_step lost 3
pkill -9 -P "${pids[1]}" || kill -9 "${pids[1]}"
status=0
wait "${pids[0]}" || status=$?
[ "$status" -ne 0 ] && [ "$status" -ne 124 ] || { echo "rank 0 ended with $status after rank 1 was killed" >&2; exit 1; }
says rank_0.log "rank 1 of 4 on .* has ended or closed its connection; it was in step"
wait
steps=$(($(ls lost/checkpoints | grep -o '[0-9]*$' | sort -n | tail -1 | sed 's/^0*//') + 2))
ranks 3 train.steps=$steps out=lost parallel.data=4 checkpoint.interval=2
for pid in "${pids[@]}"; do ! wait "$pid" || { echo "three ranks ran where four were wanted" >&2; exit 1; }; done
says rank_0.log "are 4 ranks, but there are 3 ranks"
ranks 3 train.steps=$steps out=lost parallel.data=4 parallel.restarts=1 checkpoint.interval=2
all_end_well
says rank_0.log "parallel.data=2, the largest number that divides the 4 micro-batches of a step (the settings want 4); 1 left over"
says rank_0.log "resumed from lost/checkpoints"
says rank_2.log "rank 2 of 3 has nothing to do and exits"

# Without a launcher the program starts a killed run again, and passes on the wish to end.
"${train[@]}" train.steps=100000 out=again parallel.restarts=1 checkpoint.interval=1 log.interval=1 2>again.log >/dev/null &
parent=$!
until_step again 3
pkill -9 -P $parent
until sed '1,/"resume"/d' again/log.jsonl | grep -q '"kind":"step"' || ! kill -0 $parent; do sleep 0.1; done
kill -TERM $parent
wait $parent
says again.log "resumed from again/checkpoints"
says again.log "the run was ended by signal SIGKILL (9)"
says again.log "starting it again (1 of 1)"
