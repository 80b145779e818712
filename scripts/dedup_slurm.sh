#!/usr/bin/env bash
# Submits `octet data dedup` to Slurm: its stages in order, those that shards may run as job arrays.
# Usage: scripts/dedup_slurm.sh SHARDS [sbatch option]... -- INPUT... --out DIR [option of octet data dedup]...
# A job that failed or was killed is done again by the same command: what is there is not made again.
set -euo pipefail
shards=${1:-}
[[ $shards =~ ^[1-9][0-9]*$ ]] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
shift
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
[ $# -gt 1 ] || { echo "$0: no inputs behind --" >&2; exit 2; }
shift
command="${OCTET:-octet} data dedup$(printf ' %q' "$@")"
after=""
submit() {  # STAGE [sharded]: prints nothing, sets `after` to the job
  local words="--stage $1" array=""
  if [ $# -gt 1 ]; then words+=" --shard \$SLURM_ARRAY_TASK_ID/$shards" array="--array=0-$((shards - 1))"; fi
  # shellcheck disable=SC2086
  after=$(sbatch --parsable --job-name="dedup-$1" $array ${after:+--dependency=afterok:$after} "${options[@]}" --wrap "$command $words")
  after=${after%%;*}
  echo "$1: job $after"
}
submit signatures sharded
submit pairs sharded
submit groups
submit write sharded
submit finish
