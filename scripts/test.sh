#!/usr/bin/env bash
# Set up where needed, and run the ordinary tests. Arguments go to pytest: scripts/test.sh -m slow
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/environment.sh
if [ $# -eq 0 ]; then
    set -- -m 'not slow and not gpu'
fi
exec python -m pytest "$@"
