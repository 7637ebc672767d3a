#!/usr/bin/env bash
# A small CaiT at 64 px on JPEG crops of the photographs that scikit-image and scikit-learn ship,
# fine-tuned at 96 px and at 64 x 96 from its own export, on two processes; and pictures of what it
# attends to and of its residual branches. DEMO_SEED=N takes another seed; DEMO_DIR=DIR keeps the
# runs elsewhere than runs/cait. Processes meet at MASTER_PORT, or at a port that is free.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
. scripts/environment.sh
folder=${DEMO_DIR:-runs/cait}
if [ -e "$folder" ] && [ -n "${DEMO_DIR:-}" ]; then
    echo "cait_demo: $folder is there already; choose another DEMO_DIR" >&2
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
train photos_cait_64 --sharding zero2 --run-dir "$folder/64" --checkpoint-every 100
echo "== export, and fine-tune at 96 px from the export"
bigvit export "$folder/64"
train photos_cait_64_ft96 --sharding zero1 --init "$folder/64/export" --run-dir "$folder/96"
echo "== fine-tune at 64 x 96 px from the same export"
train photos_cait_64_ft64x96 --sharding zero1 --init "$folder/64/export" --run-dir "$folder/64x96"
echo "== evaluate"
bigvit evaluate "$folder/64" --workers 0 --image-size 96 > "$folder/64_at_96.json"
for size in 96 64x96; do
    bigvit evaluate "$folder/$size" --workers 0 > "$folder/${size}_at_$size.json"
done
echo "== what it looks at"
python - "$folder" <<'PY'
import sys
import skimage.data
from PIL import Image
for name in ("astronaut", "cat", "coffee", "rocket"):
    Image.fromarray(getattr(skimage.data, name)()).save(f"{sys.argv[1]}/{name}.png")
PY
bigvit attention "$folder/96" "$folder"/{astronaut,cat,coffee,rocket}.png
bigvit branches "$folder/64" --out "$folder/branches.png" > "$folder/branches.jsonl"
python - "$folder" <<'PY'
import json, sys
folder = sys.argv[1]
names = ("64_at_96", "96_at_96", "64x96_at_64x96")
before, after, wide = (json.load(open(f"{folder}/{n}.json")) for n in names)
for name, row in (
    ("at 64 px, tested at 96", before),
    ("fine-tuned at 96 px", after),
    ("fine-tuned at 64 x 96 px", wide),
):
    print(f"{name:>24}  top-1 {row['top1']:5.2f} %  test loss {row['test_loss']:.4f}")
print(f"pictures: {folder}/96/attention/index.html, {folder}/branches.png")
sys.exit(after["test_loss"] >= before["test_loss"])
PY
