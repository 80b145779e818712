#!/usr/bin/env bash
# A Slurm of this machine alone (Debian: slurm-wlm, munge), and ranks under its srun: who they are, that a batch script and
# a single task are no launch, and what they say when one is killed. Then training under MPI (PMIx): the files of ranks as
# threads, a checkpoint when the job is signalled, a killed rank. Usage: slurm_test.sh octet_dist_test OCTET TEXT
set -euo pipefail
PATH=$PATH:/usr/sbin
for program in munged slurmctld slurmd srun sbatch; do
  command -v $program >/dev/null || { echo "skipped: there is no $program (Debian: slurm-wlm, munge)"; exit 77; }
done
octet=$(realpath "$2") text=$(realpath "$3")
rank=("$1" --gtest_filter=Rank.DISABLED_Work --gtest_also_run_disabled_tests --gtest_brief=1)
folder=$(mktemp -d)
host=$(hostname -s)
daemons=()
trap 'kill "${daemons[@]}" 2>/dev/null; wait "${daemons[@]}" 2>/dev/null; rm -rf "$folder"' EXIT
expect() { [ "$2" = "$3" ] || { echo "$1: '$2', want '$3'"; tail -n 20 "$folder"/*.log; exit 1; }; }

port=$((17000 + RANDOM % 2000 * 2))
export SLURM_CONF=$folder/slurm.conf
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldPort=$port
SlurmdPort=$((port + 1))
ProctrackType=proctrack/pgid
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=8
PartitionName=test Nodes=ALL Default=YES
CONF
mkdir "$folder/state" "$folder/spool"
chmod 711 "$folder"  # munge's socket is for all users
head -c 128 /dev/urandom >"$folder/key"
chmod 600 "$folder/key"
munged --foreground --force --key-file="$folder/key" --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" \
  --log-file="$folder/munge.log" --seed-file="$folder/seed" 2>/dev/null &
daemons+=($!)
until [ -S "$folder/munge.socket" ]; do sleep 0.1; done
slurmctld -D >"$folder/slurmctld.log" 2>&1 &
daemons+=($!)
slurmd -D >"$folder/slurmd.log" 2>&1 &
daemons+=($!)
until sinfo --noheader --format=%T 2>/dev/null | grep -q idle; do sleep 0.1; done

export OCTET_TEST_FOLDER=$folder OCTET_TEST_RANK=identity
srun -n 3 "${rank[@]}" 2>/dev/null
for number in 0 1 2; do
  expect "rank $number" "$(sed -E 's/ [0-9]+ 1\.0 / PORT TOKEN /' "$folder/$number")" "$number 3 $number 3 $host PORT TOKEN Slurm"
done

export OCTET_TEST_RANK=alone
srun -n 1 "${rank[@]}" || expect "one task" "a launch" "none"
sbatch --quiet --wait --ntasks=3 --output="$folder/batch.log" --wrap "${rank[*]}" || expect "a batch script" "a launch" "none"

export OCTET_TEST_RANK=control
srun --kill-on-bad-exit=0 -n 3 "${rank[@]}" 2>/dev/null && expect "a killed rank" "exit status 0" "a failure"
for number in 0 2; do
  expect "rank $number" "$(cat "$folder/$number")" "rank 1 of 3 on $host has ended or closed its connection; it had run no graph"
done

cd "$folder"
head -c 60000 "$text" >text
"$octet" tokenizer train --vocab-size 300 --out tok text >/dev/null 2>&1
"$octet" data --tokenizer tok --out corpus text >/dev/null 2>&1
train=("$octet" train train.device=cpu train.threads=1 data.train=corpus data.sequence_length=32 model.size=gpt2-nano
  model.layers=2 model.hidden=64 model.heads=4 train.micro_batch=1 train.global_batch=4 eval.interval=0 log.interval=1
  parallel.data=2 parallel.tensor=2 parallel.shard=optimizer)
srun_train() {  # srun_train() SETTINGS...: of four ranks; its log is ranks.log
  srun --mpi=pmix --kill-on-bad-exit=1 -n 4 --job-name=ranks "${train[@]}" "$@" >ranks.log 2>&1
}
trained() { until grep -q "\"step\":[1-9][0-9]" "$1/log.jsonl" 2>/dev/null; do sleep 0.1; done; }

"${train[@]}" train.steps=6 out=threads >/dev/null 2>&1
if [ -f "$(dirname "$octet")/liboctet_mpi.so" ] && srun --mpi=list 2>&1 | grep -qw pmix; then
  srun_train train.steps=6 out=slurm || expect "training" "$(cat ranks.log)" "exit status 0"
  for file in model optimizer scales; do cmp {threads,slurm}/checkpoints/step_00000006/$file.safetensors; done

  srun_train train.steps=1000000 out=signalled &
  trained signalled
  scancel --signal=TERM --name=ranks
  wait $! || expect "a signalled job" "$(cat ranks.log)" "exit status 0"
  expect "its checkpoints" "$(ls signalled/checkpoints | wc -l)" 1

  srun_train train.steps=1000000 out=killed &
  trained killed
  kill -9 "$(pgrep -f "^$octet train.*out=killed" | tail -n 1)"
  wait $! && expect "a killed rank" "exit status 0" "a failure"
  grep -q "rank [0-3] of 4 on $host has ended or closed its connection; it was in step" ranks.log ||
    expect "a killed rank" "$(cat ranks.log)" "its name"
else
  echo "training was skipped: Octet was built without MPI, or Slurm has no PMIx (Debian: slurm-wlm-basic-plugins)"
fi
echo "ranks under Slurm $(slurmd -V | cut -d' ' -f2): passed"
