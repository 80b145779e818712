#!/usr/bin/env bash
# A Slurm of this machine alone (Debian: slurm-wlm, munge), and ranks under its srun: who they are, that a batch script and
# a single task are no launch, and what they say when one is killed. Usage: slurm_test.sh octet_dist_test
set -euo pipefail
PATH=$PATH:/usr/sbin
for program in munged slurmctld slurmd srun sbatch; do
  command -v $program >/dev/null || { echo "skipped: there is no $program (Debian: slurm-wlm, munge)"; exit 77; }
done
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
echo "ranks under Slurm $(slurmd -V | cut -d' ' -f2): passed"
