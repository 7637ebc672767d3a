#!/usr/bin/env bash
# ViT-H/14 on two processes of this machine, under 16 GiB; see billion.py. BILLION_DIR=DIR holds its
# 8 GB checkpoint for the while.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/environment.sh
exec python -m benchmarks.billion "$@"
