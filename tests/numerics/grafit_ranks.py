"""What ranks do to show that the memory and the centre are one, however many hold them: three
updates of two micro-batches, in which the features are this rank's share."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))

from self_supervised import DINO, GRAFIT, IMAGES, built, output, targets

UPDATES, MICRO = 3, 2


def main(folder: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world)
    grafit, dino = built(GRAFIT, rank, world), built(DINO, rank, world)
    losses, gradients, others = list[float](), [], list[float]()
    for update in range(UPDATES):
        rows = []
        for micro in range(MICRO):
            seed = 100 * update + 10 * micro
            whole = output(seed, {1: 3, 2: 2}, {0: (1, 40), 1: (3, 40)})
            said = output(seed, {1: 3}, {1: (3, 12)})
            chosen = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(seed))
            ids = chosen[: len(whole.cls)].tolist()
            share = len(ids) // world
            own = slice(rank * share, (rank + 1) * share)

            def part(out, own=own):
                views = {g: x[own] for g, x in out.views.items()}
                followed = {g: x[own] for g, x in out.followed.items()}
                return out._replace(cls=out.cls[own], views=views, followed=followed)

            mine = part(said)
            cls = mine.cls.clone().requires_grad_()
            loss = grafit(mine._replace(cls=cls), targets(ids[own]), ())
            (gradient,) = torch.autograd.grad(loss, cls)
            losses.append(loss.item())
            rows.append(gradient.tolist())
            others.append(dino(part(whole), targets(ids[own]), dino.draws("", 0, 0, (0, 1))).item())
        gradients.append(rows)
        grafit.applied()
        dino.applied()
    ((memory,), (centre,)) = list(grafit.kept()), list(dino.kept())
    assert centre.writer == (rank == 0) and memory.writer
    found = {
        "losses": losses,
        "gradients": gradients,
        "dino": others,
        "centre": centre.tensor.tolist(),
        "memory": memory.tensor.tolist(),
        "start": memory.start,
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[-1]))
