"""A teacher's weights, as `--teacher` names them: read one after another, and told by a digest."""

from collections.abc import Callable, Mapping

import torch
import xxhash
from torch import Tensor, nn

from bigvit.checkpoint.resampling import counted, of_grid
from bigvit.checkpoint.weights import Unfit, check_names, hash_weight, read_init, unfit
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Run, Teacher


class TeacherWeights:
    """The weights of a teacher, which have its model's names and shapes and are all finite.

    Where they lie in files of safetensors these are mapped: the ranks of a host share what was
    read, and each holds one weight at a time.
    """

    def __init__(self, run: Run, teacher: Teacher, outline: nn.Module, ranks: Ranks) -> None:
        """Find them, and compare the names. Collective.

        Args:
            outline: the teacher's model, of which names and shapes count.

        Raises:
            Unfit: on every rank; there is nothing that one of them can read, or it is of another
                model.
        """
        assert run.teacher is not None
        self.what, self.ranks = f"--teacher {run.teacher}", ranks
        given = read_init(run.teacher, run.teacher_ema, None, ranks, "--teacher", at_once=False)
        self.given, self.notes = given.weights, given.notes
        self.own, grid = outline.state_dict(), teacher.model.grid(teacher.image_size)
        with ranks.agree_on_error(Unfit, raised=Unfit):
            if adapted := getattr(outline, "adapted", None):  # timm's models know their names
                self.given = self._unchanged(given.raw or given.weights, adapted)
            with unfit(f"{self.what}: not of the recipe's teacher.model"):
                check_names(self.given, self.own)
            if any(map(of_grid, self.own)) and given.grid not in (None, grid):
                down, across = given.grid
                raise Unfit(
                    f"{self.what}: its {counted(self.own)} are {down} x {across}, but "
                    f"teacher.image_size makes them {grid[0]} x {grid[1]}; choose what it was "
                    "trained with"
                )

    def _unchanged(
        self,
        weights: Mapping[str, Tensor],
        adapted: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
    ) -> Mapping[str, Tensor]:
        """Weights by the model's names, none of them brought to another shape."""
        found = adapted(weights)
        for name, weight in found.items():
            if name in weights and (shape := weights[name].shape) != weight.shape:
                raise Unfit(
                    f"{self.what}: {name} is {tuple(shape)}, but teacher.image_size makes it "
                    f"{tuple(weight.shape)}; choose what it was trained with"
                )
        return found

    def each(self, take: Callable[[str, Tensor], None]) -> str:
        """Hand on every weight, whole and in float32, in the order of their names.

        Returns:
            A digest of them and their names. Collective.

        Raises:
            Unfit: on every rank; a shape is another than the model's, a value is not finite, or a
                rank reads other weights than rank 0.
        """
        hasher = xxhash.xxh3_128()
        with self.ranks.agree_on_error(Unfit, OSError, raised=Unfit):
            for name in sorted(self.own):
                weight = self.given[name].to(torch.float32).contiguous()
                self._check(name, weight)
                hash_weight(hasher, name, weight)
                take(name, weight)
        first, *others = self.ranks.texts(hasher.hexdigest())
        for rank, other in enumerate(others, 1):
            if other != first:
                raise Unfit(
                    f"{self.what}: {self.ranks.name(rank)} reads other weights there than "
                    f"{self.ranks.name(0)}; every host needs the same"
                )
        return first

    def _check(self, name: str, weight: Tensor) -> None:
        if weight.shape != (shape := self.own[name].shape):
            raise Unfit(
                f"{self.what}: {name} is {tuple(weight.shape)}, but that of the recipe's "
                f"teacher.model is {tuple(shape)}; choose weights of that model"
            )
        if not weight.isfinite().all():
            raise Unfit(f"{self.what}: {name} holds values that are not finite; choose others")
