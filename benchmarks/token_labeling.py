"""A small LV-ViT taught by labels, by label maps, and by these with MixToken: the last step of
table 2 of LV-ViT's supplement made small.

    python -m benchmarks.token_labeling FOLDER [--seeds 0 1 2]

Cuts the photographs into FOLDER/photographs, trains a ResNet (`recipes/photos.py`) by `deepspeed`
on two ranks, makes its label maps on two ranks, which are killed once on the way, and trains each
student from every seed, two at a time on one rank each. What is done there already is not done
again. Prints the table of top-1 on the 240 test images. Five to six minutes on two cores.
"""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from benchmarks.distillation import shown, trained
from bigvit.ranks.launched import free_port

TEACHER = "photos_resnet_64"
STUDENTS = {  # what the table calls them
    "photos_lv_vit_64": "labels alone",
    "photos_lv_vit_64_tokens": "and label maps",
    "photos_lv_vit_64_tokens_mix": "and label maps, MixToken",
}
HEADS = ("class_head", "dense_head")
IMAGE_SIZE = 128  # of whole images; the teacher's maps have a cell for 8 x 8 pixels


def label(teacher: Path, root: Path, out: Path) -> None:
    """Make the maps on two ranks; the launcher and its ranks are killed once, where there is time
    between the first file and the last."""
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "bigvit.cli", "label-maps", str(teacher)]
    command += ["--data-root", str(root), "--out", str(out), "--image-size", str(IMAGE_SIZE)]
    command += ["--batch-size", "16", "--workers", "0"]
    made = subprocess.Popen([sys.executable, *command], stdout=sys.stderr)
    while made.poll() is None and not list(out.glob("maps_*.bin")):
        time.sleep(0.01)
    if made.poll() is None:
        launcher = psutil.Process(made.pid)
        for process in [launcher, *launcher.children(recursive=True)]:
            process.kill()
    made.wait()
    there, whole = len(list(out.glob("maps_*.bin"))), (out / "manifest.json").exists()
    print(f"killed with {there} files there, complete: {whole}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="Token labelling on photographs.")
    parser.add_argument("folder", type=Path, help="for the images, the maps and the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    began = time.perf_counter()
    root, teacher, maps = (args.folder / name for name in ("photographs", TEACHER, "maps"))
    if not root.exists():
        subprocess.run([sys.executable, "scripts/photos.py", str(root)], check=True)
    print(f"teacher: {trained(TEACHER, teacher, root)['top1']:.2f} %", flush=True)
    if not (maps / "manifest.json").is_file():
        label(teacher, root, maps)

    def one(name: str, seed: int) -> dict[str, Any]:
        given = [] if name == "photos_lv_vit_64" else ["--label-maps", str(maps)]
        options = ["--evaluate-every", "100", "--seed", str(seed), *given]
        return trained(name, args.folder / f"{name}_{seed}", root, *options, ranks=1)

    with ThreadPoolExecutor(2) as both:
        done = {name: [both.submit(one, name, seed) for seed in args.seeds] for name in STUDENTS}
    rows = ["| student | class head | dense head | prediction |", "|---" * 4 + "|"]
    for name, what in STUDENTS.items():
        lines = [each.result() for each in done[name]]
        heads = [shown([line[head]["top1"] for line in lines if head in line]) for head in HEADS]
        rows.append(f"| {' | '.join([what, *heads, shown([line['top1'] for line in lines])])} |")
    print("\n".join(rows))
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
