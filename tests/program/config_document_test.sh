#!/usr/bin/env bash
# docs/config.md is the table the program prints. Usage: config_document_test.sh OCTET DOCUMENT
# With OCTET_UPDATE_GOLDENS set, the document is written instead.
set -euo pipefail
if [ -n "${OCTET_UPDATE_GOLDENS:-}" ]; then "$1" config --markdown > "$2"; fi
diff "$2" <("$1" config --markdown) || { echo "$2 is not what the program prints: make docs" >&2; exit 1; }
