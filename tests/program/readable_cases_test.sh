#!/usr/bin/env bash
# The list of a test program's cases prints their parameters, not raw bytes (give the type a PrintTo).
# Usage: readable_cases_test.sh TEST_PROGRAM
set -euo pipefail
list=$("$1" --gtest_list_tests)
[ -n "$list" ]
! grep "[0-9]-byte object <" <<<"$list" >&2
