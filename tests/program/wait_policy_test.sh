#!/usr/bin/env bash
# The program runs with sleeping OpenMP threads unless the user chose otherwise, and passes its arguments and exit code on.
# Usage: wait_policy_test.sh OCTET
set -euo pipefail
unset OMP_WAIT_POLICY GOMP_SPINCOUNT
displayed() { grep "GOMP_SPINCOUNT = " <<<"$shown" | tail -n 1; }
shown=$(OMP_DISPLAY_ENV=verbose "$1" --version 2>&1)
[[ "$(displayed)" == *"'0'"* ]] || { echo "$shown" >&2; exit 1; }
tail -n 1 <<<"$shown" | grep -q "^octet [0-9]"
shown=$(OMP_DISPLAY_ENV=verbose GOMP_SPINCOUNT=77 "$1" --version 2>&1)
[[ "$(displayed)" == *"'77'"* ]] || { echo "$shown" >&2; exit 1; }
code=0
"$1" eval "no such folder" --max-tokens 1 2>/dev/null || code=$?
[ "$code" = 1 ]
