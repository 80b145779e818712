#!/usr/bin/env bash
# OpenMP threads of the program spin a thousand times and then sleep, unless the user chose otherwise; arguments and exit
# code are preserved.
# Usage: wait_policy_test.sh OCTET
set -euo pipefail
unset OMP_WAIT_POLICY GOMP_SPINCOUNT
displayed() { grep "GOMP_SPINCOUNT = " <<<"$shown" | tail -n 1; }
shown=$(OMP_DISPLAY_ENV=verbose "$1" --version 2>&1)
[[ "$(displayed)" == *"'1000'"* ]] || { echo "$shown" >&2; exit 1; }
grep -q "^octet [0-9]" <<<"$shown"
shown=$(OMP_DISPLAY_ENV=verbose GOMP_SPINCOUNT=77 "$1" --version 2>&1)
[[ "$(displayed)" == *"'77'"* ]] || { echo "$shown" >&2; exit 1; }
code=0
"$1" eval "no such folder" --max-tokens 1 2>/dev/null || code=$?
[ "$code" = 1 ]
