"""What an update sends: its collectives, in bytes of the tensors that they work on. docs/plan.md
has the formulas. No torch here."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

from bigvit.engines.arrangement import NAMED, Arrangement
from bigvit.plan.cuts import (
    WHOLE_BUCKET,
    bucketed,
    elements,
    gathers,
    owners,
    persistent,
    pieces,
    rows,
    share,
    sub_groups,
    units,
    zero_of,
)
from bigvit.plan.follower import asked, follower_weights, seen
from bigvit.plan.kept import gathered_bytes, reduced_bytes
from bigvit.plan.matrices import spread
from bigvit.plan.weights import BYTES, Weight, heads, weights_of
from bigvit.recipe import Lamb, Layout, Recipe, Run, UperNet

Kind = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all"]
What = Literal[
    "gradients", "weights", "follower", "norms", "losses", "statistics", "matrices", "kept"
]

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20  # bytes after which DistributedDataParallel reduces


class Collective(NamedTuple):
    """One kind of collective of an update."""

    kind: Kind
    what: What
    # of the whole tensor, the mean of all: `total` is exact; of an all-to-all, a rank's own
    bytes: int
    times: int  # an update; an estimate where buckets decide
    ranks: int  # that take part
    overlaps: bool  # can go on beside computing
    total: int  # bytes an update
    through: int  # groups that do so at once through one node's network; 0: it stays within
    spread: int  # micro-batches in which an equal part is sent


def traffic(
    recipe: Recipe, layout: Layout, run: Run, per_node: int, rank: int | None = None
) -> tuple[Collective, ...]:
    """The collectives of an update, none where there is one rank.

    Args:
        per_node: ranks of a node.
        rank: whose all-to-alls are counted; left out: of the one with most.
    """
    if layout.world == 1:
        return ()
    sent = Sent(recipe, layout, run, per_node)
    each: Iterator[Collective] = iter(())
    match run.engine:
        case "deepspeed":
            zero = zero_of(run)
            stage: int = zero["stage"]
            each = (sent.whole, sent.flat, sent.flat, sent.pieces)[stage](zero)
        case "fsdp2":
            each = sent.rows()
        case "fairscale":
            each = sent.owned()
        case "single":
            pass
    kept = sent.kept(layout)
    others = sent.matrices(layout, rank), sent.normalised(), sent.losses(), kept
    return (*each, *chain(*others))


def totals(sent: Iterable[Collective]) -> Counter[tuple[str, int]]:
    """Bytes of an update by kind and number of ranks."""
    found: Counter[tuple[str, int]] = Counter()
    for each in sent:
        found[each.kind, each.ranks] += each.total
    return found


class Sent:
    """One recipe's collectives on so many ranks."""

    def __init__(self, recipe: Recipe, layout: Layout, run: Run, per_node: int) -> None:
        self.recipe, self.run = recipe, run
        self.world, self.micro = layout.world, layout.accumulation
        self.node = min(per_node, self.world)
        self.weights = weights_of(recipe)
        self.trained = self.weights.trained
        self.groups = self.weights.groups(recipe.layer_decay != 1)
        self.follower = follower_weights(recipe)
        self.asked, self.passes = len(asked(recipe)), 1 + len(seen(recipe))
        self.type, self.gradient = BYTES[recipe.precision], BYTES[recipe.gradient_precision]

    def of(
        self,
        kind: Kind,
        what: What,
        total: int,
        times: int,
        *,
        ranks: int | None = None,
        overlaps: bool = False,
        one_a_node: bool = False,
        spread: int = 1,
    ) -> Iterator[Collective]:
        """So many of `total` bytes together, over all ranks if not said otherwise.

        Args:
            one_a_node: whether the ranks are one of each node, and not neighbours.
            spread: micro-batches in which an equal part is sent; of one, it is the last.
        """
        ranks = self.world if ranks is None else ranks
        through = self.node if one_a_node else int(ranks > self.node)
        if times and ranks > 1:
            size = total // times
            yield Collective(kind, what, size, times, ranks, overlaps, total, through, spread)

    def losses(self) -> Iterator[Collective]:
        """Means over ranks of the losses, and of BatchNorm's statistics where it gathers any."""
        yield from self.of("all-reduce", "losses", 4 * len(self.recipe.objectives), 1)
        if statistics := self.weights.gathered:
            yield from self.of("all-reduce", "statistics", 4 * statistics, 1)

    def normalised(self) -> Iterator[Collective]:
        """What UperNet's norms are told of the other ranks' images: means and variances, and in
        backward as many sums, of each micro-batch."""
        segmented = (each for each in self.recipe.objectives if isinstance(each, UperNet))
        every = (op for each in segmented for op in heads(each, self.recipe))
        norms = [op.parameters for op in every if op.kind == "batch norm"]
        own, times, more = 4 * self.micro * sum(norms), self.micro * len(norms), self.micro
        yield from self.of("all-gather", "statistics", self.world * own, times, spread=more)
        yield from self.of("all-reduce", "statistics", own, times, spread=more)

    def kept(self, layout: Layout) -> Iterator[Collective]:
        """What objectives compare and average over ranks."""
        yield from self.of("all-gather", "kept", *gathered_bytes(self.recipe, layout))
        yield from self.of("all-reduce", "kept", *reduced_bytes(self.recipe, layout))

    def ratios(self, groups: Sequence[Sequence[Weight]]) -> Iterator[Collective]:
        """The sums of squares of LAMB's trust ratios, of weights and of directions, in float64: of
        the decayed parameters of each tensor that the optimizer sees."""
        if isinstance(self.recipe.optim, Lamb) and self.recipe.optim.weight_decay:
            sizes = [16 * len(group) for group in groups if group[0].decayed]
            yield from self.of("all-reduce", "norms", sum(sizes), len(sizes))

    def matrices(self, layout: Layout, rank: int | None) -> Iterator[Collective]:
        """What Muon hands to the owners of matrices, and gets back."""
        found = spread(self.recipe, layout, self.run, self.node)
        if found is not None and found.calls:
            most = max(found.sent) if rank is None else found.sent[rank % found.ranks]
            yield from self.of("all-to-all", "matrices", most, found.calls, ranks=found.ranks)

    def whole(self, _: dict[str, Any]) -> Iterator[Collective]:
        """DeepSpeed's stage 0."""
        size = elements(self.trained)
        times = -(-size // WHOLE_BUCKET)
        yield from self.of("all-reduce", "gradients", self.gradient * size, times)

    def flat(self, zero: dict[str, Any]) -> Iterator[Collective]:
        """ZeRO 1 and 2: whole gradients, of which each rank takes its part; then the weights, and
        their average for a follower."""
        micro = self.micro if zero["stage"] == 2 else 1
        size = elements(self.trained)
        kind: Kind = "all-reduce"
        if zero["reduce_scatter"] and not zero["use_multi_rank_bucket_allreduce"]:
            kind = "reduce"
        times = micro * buckets(self.trained, zero["reduce_bucket_size"])
        total = micro * self.gradient * size
        overlaps = bool(zero["overlap_comm"])
        yield from self.of(kind, "gradients", total, times, overlaps=overlaps, spread=micro)
        flat = self.world * sum(share(elements(group), self.world) for group in self.groups)
        gathered = self.type * flat, len(self.groups)
        yield from self.of("all-gather", "weights", *gathered)
        if self.follower:
            yield from self.of("all-gather", "follower", *gathered)
        yield from self.of("all-reduce", "norms", 4 * len(self.groups), len(self.groups))
        yield from self.ratios(self.groups)

    def pieces(self, zero: dict[str, Any]) -> Iterator[Collective]:
        """ZeRO 3: weights as they are needed, and gradients as they come."""
        inner = min(zero["zero_hpz_partition_size"], self.world)
        small = persistent([*self.weights.all, *self.follower], zero)
        passes = self.passes, self.asked
        recomputed = self.run.checkpoint_activations
        first, again = gathers(self.weights, zero, recomputed, self.follower, passes)
        near = inner if inner > 1 else self.world  # the ranks that have it after the first time
        for weights, times, ranks in (
            (first, 1, self.world),
            (first, self.micro - 1, near),
            (again, self.micro, near),
        ):
            total = times * self.type * self.world * pieces(weights, self.world)
            count = times * len({(w.module, w.block) for w in weights})
            yield from self.of(
                "all-gather", "weights", total, count, ranks=ranks, overlaps=True, spread=times
            )
        total = self.type * self.world * pieces(small, self.world)
        yield from self.of("all-gather", "weights", total, len(small))
        # what is small of the follower: with those, and anew once it has followed
        ours = set(map(id, self.follower))
        small = [w for w in small if id(w) in ours]
        total = self.type * self.world * pieces(small, self.world)
        yield from self.of("all-gather", "follower", total, 1 if small else 0)
        whole = elements(self.trained)
        kind: Kind = "all-reduce"
        if zero["reduce_scatter"]:
            kind, whole = "reduce-scatter", self.world * pieces(self.trained, self.world)
        times = self.micro * buckets(self.trained, zero["reduce_bucket_size"])
        total = self.micro * self.gradient * whole
        yield from self.of(kind, "gradients", total, times, overlaps=True, spread=self.micro)
        cut = sub_groups(self.groups, self.world, zero)
        width = 4 if zero["offload_optimizer"] else 8
        yield from self.of("all-reduce", "norms", width * len(cut), len(cut))
        yield from self.ratios(cut)

    def rows(self) -> Iterator[Collective]:
        """fsdp2: each block is gathered for forward, and for backward if it was not kept."""
        way = NAMED["fsdp2"][self.run.arrangement]
        shards = self.node if way.within_hosts else self.world
        all_ = units(self.weights.all)
        # what lies in no block once a way; blocks once a pass. Kept, blocks go with the backward
        # pass of the last group of views, and come again for those before
        times = 1 if way.whole_weights else 2 * self.micro
        times_of_blocks = self.passes * times
        yield from self._gathered("weights", all_, shards, times, times_of_blocks, way)
        if self.follower:
            times, of_blocks = self.micro, self.micro * self.asked
            each = units(self.follower)
            yield from self._gathered("follower", each, shards, times, of_blocks, way)
        cut = self.gradient * rows(self.trained, shards)
        count = sum(1 for unit in all_ if any(w.trained for w in unit))
        yield from self.of(
            "reduce-scatter",
            "gradients",
            self.micro * shards * cut,
            self.micro * count,
            ranks=shards,
            overlaps=True,
            spread=self.micro,
        )
        across = self.world // shards if way.within_hosts else 1
        yield from self.of(
            "all-reduce",
            "gradients",
            cut,
            count,
            ranks=across,
            overlaps=True,
            one_a_node=True,
        )
        yield from self.of("all-reduce", "norms", 4, 1, ranks=shards)
        if isinstance(self.recipe.optim, Lamb) and self.recipe.optim.weight_decay:
            yield from self.of("all-reduce", "norms", 16 * len(self.trained), 1, ranks=shards)

    def _gathered(
        self,
        what: What,
        all_: list[list[Weight]],
        shards: int,
        times: int,
        of_blocks: int,
        way: Arrangement,
    ) -> Iterator[Collective]:
        """What fsdp2 gathers.

        Args:
            times, of_blocks: of what lies in no block, and of each block.
        """
        used = (u for u in all_ if u[0].block is None or u[0].read)
        rest, *blocks = (self.type * shards * rows(unit, shards) for unit in used)
        total = times * rest + of_blocks * sum(blocks)
        yield from self.of(
            "all-gather",
            what,
            total,
            times + of_blocks * len(blocks),
            ranks=shards,
            overlaps=True,
            spread=1 if way.whole_weights and what == "weights" else self.micro,
        )

    def owned(self) -> Iterator[Collective]:
        """fairscale: gradients to all ranks or to the one that steps them, and weights back."""
        total = self.type * elements(self.trained)
        mine = owners(self.groups, self.world)
        if NAMED["fairscale"][self.run.arrangement].whole_gradients:
            times = 1 + -(-max(0, total - FIRST_BUCKET) // BUCKET)
            yield from self.of("all-reduce", "gradients", total, times, overlaps=True)
        else:
            whole = elements(self.weights.all)
            times = sum(1 + alone(part, whole) for part in mine if part)
            yield from self.of("reduce", "gradients", total, times, overlaps=True)
        yield from self.of("broadcast", "weights", total, sum(map(bool, mine)))
        followed = self.type * elements([w for w in self.follower if w.trained])
        yield from self.of("broadcast", "follower", followed, sum(map(bool, mine)))
        yield from self.of("all-reduce", "norms", 4, 1)


def buckets(weights: Sequence[Weight], size: int) -> int:
    """How many buckets gradients fill that come from the last parameter to the first."""
    count, filled = 1, 0
    for w in reversed(weights):
        if filled and filled + w.size > size:
            count, filled = count + 1, 0
        filled += w.size
    return count


def alone(part: Sequence[Weight], whole: int) -> int:
    """How many of a rank's gradients fit into no bucket of ShardedDataParallel."""
    left, count = bucketed(part, whole), 0
    for size in sorted(w.size for w in part):
        left -= size
        count += left < 0
    return count
