# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Rows that the ranks have, together on the first one."""

import torch
import torch.distributed as dist
from torch import Tensor

from bigvit.ranks.joining import Ranks

PIECE = 1 << 26  # bytes that are under way at once, but for one row that is longer


def gathered(rows: Tensor, ranks: Ranks) -> Tensor:
    """Rows (N, D) of every rank, in the order of the ranks, on the first one's device; on the
    others none. Numbers stay as they are, bit for bit. Collective.

    Args:
        rows: of one type and D on each rank; without any, of any D.
    """
    own = torch.zeros(ranks.world, dtype=torch.int64)
    own[ranks.rank] = len(rows)
    counts: list[int] = ranks.sum(own).tolist()
    width = ranks.agree(rows.shape[1] if len(rows) else 0)
    piece = max(1, PIECE // max(1, width * rows.element_size()))
    whole = rows.new_empty(sum(counts) if ranks.rank == 0 else 0, width)
    if ranks.rank == 0:
        whole[: counts[0]] = rows.view(counts[0], width)
    done = counts[0]
    for rank, count in list(enumerate(counts))[1:]:
        for start in range(0, count, piece):
            stop = min(start + piece, count)
            if ranks.rank == rank:
                dist.send(rows[start:stop].cpu().contiguous(), 0, group=ranks.cpu_group)
            elif ranks.rank == 0:
                got = torch.empty(stop - start, width, dtype=rows.dtype)
                dist.recv(got, rank, group=ranks.cpu_group)
                whole[done + start : done + stop] = got
            ranks.went_on()
        done += count
    return whole
