#!/usr/bin/env bash
# Set up where needed, and run the ordinary tests, three at a time, as many of them wait more than
# they compute. Arguments go to pytest:
# scripts/test.sh -m slow
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/environment.sh
if [ $# -eq 0 ]; then
    set -- -m 'not slow and not gpu' -n 3
fi
exec python -m pytest "$@"
