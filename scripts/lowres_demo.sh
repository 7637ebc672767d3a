#!/usr/bin/env bash
# Two stages as DeiT III trains: a small ViT at 64 px, then fine-tuned at 96 px, on JPEG crops of the
# photographs that scikit-image and scikit-learn ship, on two processes. DEMO_SEED=N takes another
# seed; DEMO_DIR=DIR keeps the runs elsewhere than runs/lowres. Processes meet at MASTER_PORT, or at
# a port that is free.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/environment.sh
folder=${DEMO_DIR:-runs/lowres}
if [ -e "$folder" ] && [ -n "${DEMO_DIR:-}" ]; then
    echo "lowres_demo: $folder is there already; choose another DEMO_DIR" >&2
    exit 2
fi
rm -rf "$folder"
seed=${DEMO_SEED:-0}

train() {
    deepspeed --num_accelerators 2 --master_port "$(master_port)" scripts/train.py "$@" \
        --data-root "$folder/photos" --seed "$seed" --evaluate-every 4 --log-every 25 --workers 0
}

echo "== cut the photographs"
python scripts/photos.py "$folder/photos"
echo "== train at 64 px"
train photos_vit_64 --sharding zero2 --run-dir "$folder/64"
echo "== fine-tune at 96 px"
train photos_vit_64_ft96 --sharding zero1 --init "$folder/64" --run-dir "$folder/96"
echo "== evaluate"
bigvit evaluate "$folder/64" --workers 0 > "$folder/64_at_64.json"
bigvit evaluate "$folder/64" --workers 0 --image-size 96 > "$folder/64_at_96.json"
bigvit evaluate "$folder/96" --workers 0 > "$folder/96_at_96.json"
python - "$folder" <<'PY'
import json, sys
found = {n: json.load(open(f"{sys.argv[1]}/{n}.json")) for n in ("64_at_64", "64_at_96", "96_at_96")}
print("\ntrained at  tested at  top-1   test loss")
for name, row in found.items():
    trained, tested = name.split("_at_")
    print(f"{trained:>10}  {tested:>9}  {row['top1']:5.2f} %  {row['test_loss']:.4f}")
low, high, tuned = found.values()
fine = low["top1"] < 95 and tuned["test_loss"] < min(low["test_loss"], high["test_loss"])
print("the fine-tuned model has the lowest test loss" if fine else "NOT as expected")
sys.exit(not fine)
PY
