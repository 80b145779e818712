#!/usr/bin/env bash
# Runs a test program under mpirun, or says why not (exit status 77). Usage: mpi_test.sh RANKS [PROGRAM]
set -euo pipefail
ranks=$1 program=${2:-}
[ -n "$program" ] || { echo "skipped: built without MPI (scripts/setup.sh test installs it)"; exit 77; }
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec mpirun -n "$ranks" --oversubscribe "$program" --gtest_brief=1
