#!/usr/bin/env bash
# What only a GPU can show, in at most four minutes, and one table: tests/gpu and benchmarks/gpu.py.
# --pretend runs all of it that a machine without a GPU can. 0: all is well; 1: what failed is said;
# 2: what is missing is said. It takes .venv, BIGVIT_VENV or the python3 that is there, as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${BIGVIT_VENV:-.venv}
if [ -e "$venv/bin/activate" ]; then
    . scripts/environment.sh
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1
exec python3 scripts/on_gpu.py "$@"
