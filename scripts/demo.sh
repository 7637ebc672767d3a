#!/usr/bin/env bash
# From nothing to a trained, evaluated and exported model: digits_vit on two processes at ZeRO-2,
# stopped halfway and resumed. DEMO_DIR=DIR keeps the run elsewhere than runs/demo. Processes meet at
# MASTER_PORT, or at a port that is free.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/environment.sh
run=${DEMO_DIR:-runs/demo}
if [ -e "$run" ] && [ -n "${DEMO_DIR:-}" ]; then
    echo "demo: $run is there already; choose another DEMO_DIR" >&2
    exit 2
fi
rm -rf "$run"

train() {
    deepspeed --num_accelerators 2 --master_port "$(master_port)" scripts/train.py digits_vit \
        --sharding zero2 --run-dir "$run" --evaluate-every 4 --log-every 46 --checkpoint-every 230 \
        --workers 0 "$@"
}

echo "== train, and stop halfway"
code=0
train --stop-after 230 || code=$?
[ "$code" -eq 85 ] || { echo "demo: expected exit code 85 (to be requeued), not $code" >&2; exit 1; }
grep -q '"state": "requeue"' "$run/status.json"

echo "== resume"
train --resume auto
grep -q '"state": "done"' "$run/status.json"

echo "== evaluate"
bigvit evaluate "$run" | tee "$run/evaluation.json"

echo "== export"
bigvit export "$run"

python - "$run" <<'PY'
import json, sys
run = sys.argv[1]
top1 = json.load(open(f"{run}/evaluation.json"))["top1"]
print(f"""
accuracy on the held-out digits: {top1:.2f} % (92 % or more is expected)
  what was trained    {run}/recipe.json
  what happened       {run}/metrics.jsonl
  how it ended        {run}/status.json
  checkpoints         {run}/checkpoints/
  weights for timm    {run}/export/""")
sys.exit(top1 < 92)
PY
