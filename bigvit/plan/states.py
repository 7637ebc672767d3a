"""What an engine holds on a rank beside activations, at most while it updates: bytes of the rank
that holds most. docs/plan.md has every formula. No torch here.

An update has two moments that count. Backward ends: whole or cut gradients are there, buckets, and
weights gathered beside the pieces. The optimizer steps: gradients are there as it reads them.
"""

from dataclasses import dataclass
from typing import Any

from bigvit.engines.arrangement import NAMED
from bigvit.plan.cuts import (
    WHOLE_BUCKET,
    alive,
    bucketed,
    elements,
    owners,
    persistent,
    pieces,
    rows,
    share,
    sub_groups,
    units,
    zero_of,
)
from bigvit.plan.follower import follower_weights
from bigvit.plan.kept import noted_bytes, remembered_bytes
from bigvit.plan.matrices import spread
from bigvit.plan.weights import BYTES, WIDE, Weight, hidden, weights_of
from bigvit.recipe import SGD, Layout, Recipe, Run


@dataclass(frozen=True)
class States:
    """Bytes, but for `updated`."""

    weights: int  # that stay through the update, in the model's type; fsdp2's are float32
    masters: int  # float32 copies of them
    moments: int  # both (SGD: the one), and the numbers of steps
    average: int  # of the weights
    follower: int  # its weights, where they are not the average's own memory
    remembered: int  # what objectives keep: Grafit's memory, DINO's centre
    buffers: int  # BatchNorm's statistics
    gradients: int  # at the end of the last micro-batch's backward pass
    buckets: int  # of communication in backward
    gathered: int  # weights beside the pieces in backward, at most
    stepping: int  # what else is there while the optimizer steps: gradients, buckets that stay
    temporary: int  # the largest that is there for a moment in the step
    noted: int  # what objectives note of an update's images, to its end
    standing: int  # of gradients, buckets and gathered weights: what stays between two updates
    host: int  # offloaded, and what stays there
    lent: int  # of the host's, for gradients until the optimizer has read them
    updated: int  # parameters that this rank's optimizer changes

    @property
    def kept(self) -> int:
        """What stays from update to update in any case."""
        beside = self.average + self.follower + self.remembered + self.buffers
        return self.weights + self.masters + self.moments + beside

    @property
    def between(self) -> int:
        """All between two updates."""
        return self.kept + self.standing

    @property
    def backward(self) -> int:
        """All at the end of backward, at most."""
        return self.kept + self.noted + self.gradients + self.buckets + self.gathered

    @property
    def step(self) -> int:
        """All while the optimizer steps, at most."""
        return self.kept + self.noted + self.stepping + self.temporary

    @property
    def device(self) -> int:
        """The most that an update asks for."""
        return max(self.backward, self.step)


def states(recipe: Recipe, layout: Layout, run: Run, per_node: int) -> States:
    """What the rank that holds most holds.

    Args:
        per_node: ranks of a node.
    """
    held = Held(recipe, layout, run, per_node)
    match run.engine:
        case "deepspeed":
            zero = zero_of(run)
            if zero["stage"] == 0:
                return held.whole()
            return held.pieces(zero) if zero["stage"] == 3 else held.flat(zero)
        case "fsdp2":
            return held.rows()
        case "fairscale":
            return held.owned()
        case "single":
            return held.whole()


class Held:
    """One recipe's parameters on so many ranks."""

    def __init__(self, recipe: Recipe, layout: Layout, run: Run, per_node: int) -> None:
        self.recipe, self.layout, self.run, self.per_node = recipe, layout, run, per_node
        self.weights = weights_of(recipe)
        self.type, self.gradient = BYTES[recipe.precision], BYTES[recipe.gradient_precision]
        self.mixed = recipe.precision != "fp32"
        self.trained = self.weights.trained
        self.groups = self.weights.groups(recipe.layer_decay != 1)
        self.follower = follower_weights(recipe)

    def of(
        self,
        weights: int,
        updated: int,
        tensors: int,
        masters: int,
        offload: bool,
        single: int = 0,
        **more: int,
    ) -> States:
        """Args:
        weights, masters: bytes.
        updated: elements that the optimizer updates.
        single: of these, elements of matrices that Muon steps, which have one moment, as all
            have that SGD steps.
        tensors: in which these lie.
        offload: whether masters, moments and the average lie on the host.
        more: the other fields, 0 where they are left out.
        """
        single = updated if isinstance(self.recipe.optim, SGD) else single
        moments = WIDE * (2 * updated - single) + 4 * tensors
        average = 0 if self.recipe.ema is None else WIDE * updated
        fields = dict.fromkeys(States.__dataclass_fields__, 0) | more
        fields |= {"weights": weights, "buffers": WIDE * self.weights.statistics}
        fields["remembered"] = remembered_bytes(self.recipe, self.layout)
        fields["noted"] = noted_bytes(self.recipe, self.layout)
        fields["updated"] = updated
        if found := spread(self.recipe, self.layout, self.run, self.per_node):
            fields["temporary"] = max(fields["temporary"], found.temporary)
        if offload:
            fields["host"] += masters + moments + average
        else:
            fields |= {"masters": masters, "moments": moments, "average": average}
        return States(**fields)

    def copies(self, updated: int, width: int) -> int:
        """Bytes of float32 copies that are made of gradients for the step."""
        return WIDE * updated if width != WIDE else 0

    def whole(self) -> States:
        """`single`, and DeepSpeed's stage 0: everything is on every rank."""
        all_, trained = elements(self.weights.all), elements(self.trained)
        single = self.run.engine == "single"
        masters = WIDE * (all_ if single else trained) if self.mixed else 0
        gradients = self.gradient * trained
        return self.of(
            self.type * all_,
            trained,
            len(self.trained),
            masters,
            False,
            gradients=gradients,
            # laid end to end to be reduced
            buckets=0 if single else self.gradient * min(trained, WHOLE_BUCKET),
            follower=0 if single and not self.mixed else self.type * elements(self.follower),
            single=elements(hidden(self.trained)),
            stepping=gradients + self.copies(trained, self.gradient),
            temporary=self.squares(max(w.size for w in self.trained)),
        )

    def squares(self, largest: int) -> int:
        """Bytes of the largest piece in float64, twice, where norms are logged."""
        return 16 * largest * self.run.log_norms

    def flat(self, zero: dict[str, Any]) -> States:
        """ZeRO 1 and 2: each group laid end to end, of which a rank has an even share."""
        world, kind, gradient = self.layout.world, self.type, self.gradient
        offload, second = zero["offload_optimizer"], zero["stage"] == 2
        shares = [share(elements(group), world) for group in self.groups]
        updated, largest = sum(shares), max(shares)
        trained = elements(self.trained)
        frozen = elements(self.weights.all) - trained
        # where gradients are added up in float32 a rank has its share, else whole parameters
        compact = gradient == WIDE and kind != WIDE
        touched = WIDE * updated if compact else kind * self.touched(zero["round_robin_gradients"])
        wide = gradient if compact and not second else kind
        bucket, buckets = min(zero["reduce_bucket_size"], trained), 0
        if zero["contiguous_gradients"] or offload:
            buckets = zero["reduce_bucket_size"] * wide * (1 + zero["overlap_comm"])
        # at stage 1 what others step still lies in them
        left = buckets if compact and not second and world > 1 else 0
        if zero["reduce_scatter"]:
            buckets += bucket * wide  # laid end to end once more
        if gradient != wide:
            buckets += bucket * gradient
        again = self.layout.accumulation > 1 and not compact  # what was added up, and what comes
        kept = 0 if offload and not compact else touched
        if second:
            gradients = kept * (1 + again * (not offload))
        else:
            gradients = wide * trained + (kept if zero["overlap_comm"] else 0)
        largest_one = max(w.size for w in self.trained)
        host = standing = 0
        if offload:
            standing = kind * largest_one
            buckets += standing
            host = (WIDE + kind) * updated + kind * largest_one + (touched if again else 0)
        return self.of(
            kind * (frozen + sum(shares) * world),
            updated,
            len(shares),
            WIDE * updated,
            offload,
            single=sum(share(elements(g), world) for g in self.groups if g[0].hidden),
            gradients=gradients,
            buckets=buckets,
            stepping=kept + left + standing + (0 if compact or offload else WIDE * largest),
            temporary=(0 if compact or offload or kind == WIDE else kind * largest)
            + self.squares(min(largest, largest_one)),
            standing=standing,
            host=host,
            # of each group as much as its weights
            follower=kind * (sum(shares) * world + self.frozen) if self.follower else 0,
        )

    @property
    def frozen(self) -> int:
        """Elements of the follower that are never trained."""
        return elements([w for w in self.follower if not w.trained])

    def touched(self, round_robin: bool) -> int:
        """Elements of all parameters that have a piece in the share of the rank with most."""
        world = self.layout.world
        found = [0] * world
        for group in self.groups:
            part, at = share(elements(group), world), 0
            order = [w for i in range(world) for w in group[i::world]] if round_robin else group
            for w in order:
                for rank in range(at // part, (at + w.size - 1) // part + 1):
                    found[rank] += w.size
                at += w.size
        return max(found)

    def pieces(self, zero: dict[str, Any]) -> States:
        """ZeRO 3: a rank has its share of every parameter, and for a while others whole."""
        world, kind, gradient = self.layout.world, self.type, self.gradient
        offload, far = zero["offload_optimizer"], zero["offload_param"]
        updated = pieces(self.trained, world)
        sums = [pieces(group, world) for group in sub_groups(self.groups, world, zero)]
        weights = kind * pieces(self.weights.all, world)
        bucket = gradient * zero["reduce_bucket_size"] * zero["contiguous_gradients"]
        again = gradient * min(zero["reduce_bucket_size"], elements(self.trained))
        inner = min(zero["zero_hpz_partition_size"], world)
        second = [*self.weights.all, *self.follower]
        second = kind * pieces(second, inner) if inner > 1 else 0
        stay = kind * elements(persistent([*self.weights.all, *self.follower], zero))
        of = self.weights, zero, self.run.checkpoint_activations, self.follower
        live = kind * alive(*of)
        gradients = gradient * updated
        stepping = gradients + (WIDE * max(sums)) if not offload else 0
        return self.of(
            0 if far else weights,
            updated,
            len(sums),
            WIDE * updated,
            offload,
            single=pieces(hidden(self.trained), world),
            gradients=0 if offload else gradients,
            buckets=bucket + again,
            gathered=live + (0 if far else second),
            stepping=stepping + bucket + (0 if far else second),
            temporary=(kind * max(sums) if gradient != WIDE and not offload else 0)
            + self.squares(max(-(-w.size // world) for w in self.trained)),
            standing=bucket + stay + (0 if offload else gradients),
            follower=0 if far else kind * pieces(self.follower, world),
            host=(weights + second + kind * pieces(self.follower, world) if far else 0)
            + (gradients + WIDE * updated) * offload,
        )

    def rows(self) -> States:
        """fsdp2: a rank has rows of every parameter in float32, and gathers a block at a time."""
        way = NAMED["fsdp2"][self.run.arrangement]
        world, kind = self.layout.world, self.type
        shards = min(self.per_node, world) if way.within_hosts else world
        updated, held = rows(self.trained, shards), rows(self.weights.all, shards)
        # what is trained of it is the average itself
        follower = rows([w for w in self.follower if not w.trained], shards)
        sizes = sorted(shards * rows(unit, shards) for unit in units(self.weights.all)[1:])
        rest = shards * rows(units(self.weights.all)[0], shards)
        block = sizes[-1] if sizes else 0
        gradients = WIDE * updated
        if way.whole_weights:
            gathered = kind * (rest + sum(sizes) + block)
        else:  # one that is computed with, and the next one both as it came and cut up
            gathered = kind * (rest + 3 * block)
        return self.of(
            0 if way.offload else WIDE * held,
            updated,
            len(self.trained),
            0,
            way.offload,
            single=rows(hidden(self.trained), shards),
            gradients=0 if way.offload else gradients,
            # of one block in the model's type, of it and the one before as they are sent
            buckets=kind * (block + rest) + 2 * self.gradient * block,
            gathered=gathered,
            stepping=0 if way.offload else gradients,
            temporary=0 if way.offload else self.squares(max(w.size for w in self.trained)),
            host=WIDE * (held + follower) * way.offload,
            follower=0 if way.offload else WIDE * follower,
            lent=gradients * way.offload,
        )

    def owned(self) -> States:
        """fairscale: whole weights; a rank has masters and moments of some parameters."""
        way = NAMED["fairscale"][self.run.arrangement]
        world, kind = self.layout.world, self.type
        mine = owners(self.groups, world)
        updated = max(map(elements, mine))
        trained, all_ = elements(self.trained), elements(self.weights.all)
        gradients = kind * trained
        copies = self.copies(updated, kind)
        if way.whole_gradients:  # once more in the buckets of DistributedDataParallel
            buckets, standing, stepping = gradients, gradients, gradients + kind * updated
        else:
            standing = kind * sum(bucketed(part, all_) for part in mine) if world > 1 else 0
            alone = max(elements(part) - bucketed(part, all_) for part in mine)
            buckets, stepping = 0, standing + kind * alone if world > 1 else gradients
        return self.of(
            kind * all_,
            updated,
            max(map(len, mine)),
            WIDE * updated if self.mixed else 0,
            False,
            single=min(elements(hidden(part)) for part in mine),
            gradients=gradients,
            buckets=buckets,
            stepping=stepping + copies,
            temporary=self.squares(max(w.size for w in self.trained)),
            standing=standing,
            # what a rank steps in float32 has the average itself there
            follower=kind * elements(self.follower) - (0 if self.mixed else self.shared(mine)),
        )

    def shared(self, mine: list[list[Weight]]) -> int:
        """Bytes of fairscale's averages that are a follower's, too: so that the sum is right of the
        rank that holds most, all else being of the rank that updates most."""
        if not self.follower:
            return 0
        state = 2 if isinstance(self.recipe.optim, SGD) else 3  # moments, average
        sizes = [(elements(part), elements([w for w in part if w.followed])) for part in mine]
        most = max(updated for updated, _ in sizes)
        return WIDE * min(state * (most - updated) + shared for updated, shared in sizes)
