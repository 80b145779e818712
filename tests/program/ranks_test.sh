#!/usr/bin/env bash
# The same run on ranks as threads, as processes of torchrun's variables, and under mpirun where it is: the same files.
# Then a rank cannot write, does not see the folder, or is killed: the other ends, naming it. Usage: ranks_test.sh OCTET TEXT
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
rank() {  # rank() RANK SETTINGS...: in the background, as torchrun starts it
  local number=$1
  shift
  RANK=$number WORLD_SIZE=2 LOCAL_RANK=$number LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port OCTET_TOKEN=$$ \
    timeout 60 "${train[@]}" "$@" >"rank_$number.log" 2>&1 &
}
same() { for file in model optimizer scales; do cmp threads/checkpoints/step_00000006/$file.safetensors "$1/checkpoints/step_00000006/$file.safetensors"; done; }

"${train[@]}" train.steps=6 out=threads >/dev/null 2>&1
port=$((20000 + $$ % 9000))
rank 0 train.steps=6 out=processes
rank 1 train.steps=6 out=processes
wait
same processes
if command -v mpirun >/dev/null && [ -f "$(dirname "$octet")/liboctet_mpi.so" ]; then
  mpirun -n 2 --oversubscribe "${train[@]}" train.steps=6 out=mpi >/dev/null 2>&1
  same mpi
fi

# Rank 1 cannot write its file of the next checkpoint: both end with the same message, and the last checkpoint stays.
port=$((port + 1))
rank 0 train.steps=8 out=processes
(trap '' XFSZ; ulimit -f 200; rank 1 train.steps=8 out=processes; wait)
wait
for log in rank_0.log rank_1.log; do
  grep -q "rank 1 of 2 on .*File too large" $log || { tail -3 $log >&2; exit 1; }
done
[ "$(ls processes/checkpoints)" = step_00000006 ] || { ls processes/checkpoints >&2; exit 1; }

# Rank 1 is in another folder, and does not see that of rank 0.
port=$((port + 1))
mkdir elsewhere
rank 0 data.train="$work/corpus" train.steps=8 out=alone
(cd elsewhere; rank 1 data.train="$work/corpus" train.steps=8 out=alone; wait)
wait
grep -q "rank 1 of 2 on .* does not see the folder alone of rank 0" rank_0.log || { tail -3 rank_0.log >&2; exit 1; }

port=$((port + 1))
rank 0 train.steps=100000 out=lost
first=$!
rank 1 train.steps=100000 out=lost
second=$!
until grep -q "\"step\":[1-9]" lost/log.jsonl 2>/dev/null; do sleep 0.1; done
pkill -9 -P "$second" || kill -9 "$second"
status=0
wait "$first" || status=$?
[ "$status" -ne 0 ] && [ "$status" -ne 124 ] || { echo "rank 0 ended with $status after rank 1 was killed" >&2; exit 1; }
tr '\r' '\n' <rank_0.log | grep -q "rank 1 of 2 on .* has ended or closed its connection; it was in step" ||
  { tail -3 rank_0.log >&2; exit 1; }
