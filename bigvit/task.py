"""What is trained: a model with its objectives, as one module that an engine shards whole."""

from typing import Any

import torch
from torch import Tensor, nn

from bigvit import models, objectives
from bigvit.data.batch import Draws
from bigvit.data.prepare import Inputs
from bigvit.models.follower import FOLLOWER, TRUNK, Follower, pooled_of
from bigvit.models.statistics import freeze, gathered
from bigvit.objectives import Objective
from bigvit.recipe import Recipe, Teacher

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""A recipe's precision as torch's."""

PREDICTION = "logits"
"""The name of a prediction's logits, among those of the heads that it is made of."""


class Task(nn.Module):
    """Turns inputs into named, already weighted losses, whose sum is to be minimised."""

    def __init__(self, recipe: Recipe, following: bool = True) -> None:
        """Args: following: False for a task that is not trained, and needs no follower."""
        super().__init__()
        self.recipe = recipe
        self.model = models.build(recipe.model, recipe.data.image_size)
        self.read = recipe.read
        for name, parameter in self.model.named_parameters():
            layer = 0 if self.read.whole else self.model.layer_id(name)
            if not recipe.trains(name, layer):
                parameter.requires_grad_(False)
        freeze(self.model, recipe.gathers)
        built = [objectives.build(each, recipe) for each in recipe.objectives]
        self.names = _distinct([each.name for each in built])
        self.objectives = dict(zip(self.names, built, strict=True))
        self.heads = nn.ModuleDict(self.objectives)  # what only training needs
        self.wanted = sorted({block for each in built for block in each.wanted})
        self.seen = sorted({group for each in built for group in each.seen})
        self.asked = sorted({group for each in built for group in each.asked})
        if self.asked and following:
            # built anew: a copy would be of what stage 3 has cut by now
            second = models.build(recipe.model, recipe.data.image_size)
            heads: dict[str, dict[str, nn.Module]] = {}
            pairs = zip(self.objectives.items(), recipe.objectives, strict=True)
            for (name, own), each in pairs:
                if own.followed is not None:
                    another = objectives.build(each, recipe)
                    heads[name] = {own.followed: another.get_submodule(own.followed)}
            self.follower = Follower(second, heads)

    @property
    def answering(self) -> Objective | None:
        """The objective that makes the predictions, if one does; no attribute, as its weights would
        have two names."""
        return next((each for each in self.objectives.values() if each.answers), None)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise every parameter from the recipe's seed; a follower's are those that it
        follows."""
        for name, parameter in self.named_parameters():
            parameter.copy_(self.initial_weight(name.removeprefix(FOLLOWER)))

    def initial_weight(self, name: str) -> Tensor:
        """What a parameter is at first, or a buffer of `statistics`; float32."""
        if name.startswith("model."):
            name = name.removeprefix("model.")
            return self.model.initial_weight(name, self.recipe.seed)
        return models.initial_weight(self, name, self.recipe.seed)

    def begin(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor | None:
        """What an objective's parameter begins as, where it has a rule of its own (`Ruled`)."""
        _, owner, own = name.split(".", 2)
        return self.objectives[owner].begin(own, value, generator)

    def statistics(self) -> dict[str, Tensor]:
        """Buffers that say what batches were like. Others follow from the recipe."""
        kept = {name for name in self.state_dict() if not name.startswith(FOLLOWER)}
        return {name: buffer for name, buffer in self.named_buffers() if name in kept}

    def gathered(self) -> dict[str, Tensor]:
        """Those of them that training changes."""
        return gathered(self, self.statistics())

    def cast_constants(self, dtype: torch.dtype) -> None:
        """Other buffers, as Swin's masks, in the type of the weights: engines that cast weights
        leave them as they are."""
        kept = {id(buffer) for buffer in self.statistics().values()}
        for module in self.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point() and id(buffer) not in kept:
                    setattr(module, name, buffer.to(dtype))

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """All but a follower's, which are an average of these."""
        named = self.named_parameters()
        return {name: p for name, p in named if not name.startswith(FOLLOWER)}

    def following(self) -> dict[str, nn.Parameter]:
        """A follower's, by the names of those that they follow."""
        named = self.named_parameters()
        return {n.removeprefix(FOLLOWER): p for n, p in named if n.startswith(FOLLOWER)}

    def forward(self, inputs: Inputs | Tensor) -> dict[str, Tensor]:
        """The weighted losses of a training micro-batch, float32 scalars by name.

        Args:
            inputs: or images alone, for nothing but logits (B, K) as `predictions` makes them. They
                have to come in by this door: stage 3 starts anew at the outermost module's, and
                would otherwise expect the weights of the last forward pass in the next.
        """
        if isinstance(inputs, Tensor):
            return self.predictions(inputs)
        images, targets, draws, number, mix, views = inputs
        followed = self._followed(images, views)
        more = {} if mix is None else {"mix": mix}
        output = self._read(images, draws.model, **more)
        seen = {
            group: pooled_of(self.model, self._to_model(views[group - 1]), draws.views[group - 1])
            for group in self.seen
        }
        epoch, epochs = number / self.recipe.updates_per_epoch, self.recipe.epochs
        losses: dict[str, Tensor] = {}
        for (name, each), drawn in zip(self.objectives.items(), draws.objectives, strict=True):
            answers = followed.get(name, followed[TRUNK])
            own = output._replace(
                views={group: seen[group] for group in each.seen},
                followed={group: answers[group] for group in each.asked},
            )
            losses[name] = each.weighted(each(own, targets, drawn), epoch, epochs)
        if self.seen or self.asked:
            # where objectives read other views alone, this one has a gradient, too: engines wait
            # for it
            losses[self.names[0]] = losses[self.names[0]] + 0 * output.logits.float().sum()
        return losses

    def _read(self, images: Tensor, draws: Any, **more: Any) -> Any:
        """What objectives read of the model."""
        if not self.read.pooled:
            more["read"] = self.read
        return self.model(self._to_model(images), draws, self.wanted, **more)

    def _followed(self, images: Tensor, views: tuple[Tensor, ...]) -> dict[str, dict[int, Tensor]]:
        """What the follower makes of what it is asked for, as its forward pass says."""
        if not self.asked:
            return {TRUNK: {}}
        groups = (images[:, None], *views)
        return self.follower({group: self._to_model(groups[group]) for group in self.asked})

    def predict(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W), normalised -> logits (B, K) whose softmax is the prediction, nothing
        dropped, and by the statistics of training."""
        return self.predictions(images)[PREDICTION]

    def predictions(self, images: Tensor) -> dict[str, Tensor]:
        """The same by name: the prediction's and, where it is made of two heads', each one's. Where
        an objective answers (`Objective.answers`), what it says."""
        training = self.training
        self.eval()
        if self.answering is not None:
            output = self._read(images, None)
            said = self.answering.answer(output, (images.shape[-2], images.shape[-1]))
            self.train(training)
            return said
        output = self.model(self._to_model(images), None)
        self.train(training)
        found = {PREDICTION: output.prediction(self.recipe.model.fusion)}
        if output.distillation is not None:
            found |= {"class_head": output.logits, "distillation_head": output.distillation}
        if output.dense is not None:
            found |= {"class_head": output.logits, "dense_head": output.dense.amax(dim=1)}
        return found

    def draws(self, number: int, span: tuple[int, int]) -> Draws:
        """Everything random about positions [start, stop) of a global batch, made on the host."""
        seed = self.recipe.seed
        drawn = (each.draws(n, seed, number, span) for n, each in self.objectives.items())
        views = list[Any]()
        for group, each in enumerate(self.recipe.data.groups, start=1):
            of = span[0] * each.count, span[1] * each.count
            seen = group in self.seen
            views.append(self.model.draws(seed, number, of, group) if seen else None)
        return Draws(self.model.draws(seed, number, span), tuple(drawn), tuple(views))

    @property
    def held(self) -> set[str]:
        """Names of parameters that stand still at first."""
        return {f"heads.{name}.{p}" for name, of in self.objectives.items() for p in of.held}

    def projector(self) -> nn.Module | None:
        """What projects a trunk's features where training compares images by that (thesis section
        2.3.1, "Adapting the architecture at test-time"); None where it does not."""
        found = (getattr(each, "projector", None) for each in self.objectives.values())
        return next((each for each in found if isinstance(each, nn.Module)), None)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are not decayed although they are matrices."""
        return {f"model.{name}" for name in self.model.no_weight_decay()}

    def layer_id(self, name: str) -> int:
        """Depth of a parameter in the model; of a head's, the deepest."""
        if name.startswith("model."):
            return self.model.layer_id(name.removeprefix("model."))
        return self.layers

    def hidden(self, name: str) -> bool:
        """Whether a parameter of the model lies behind its embedding and before its last norm."""
        return name.startswith("model.") and 0 < self.layer_id(name) < self.layers

    @property
    def layers(self) -> int:
        """The deepest layer_id."""
        return self.model.layer_id("head.weight")

    def _to_model(self, images: Tensor) -> Tensor:
        """Normalised images in the model's own precision."""
        # not by its name: seen outside its module, stage 3 would take it for another module's too
        return images.to(next(self.model.parameters()).dtype)


def teacher_model(teacher: Teacher) -> Any:
    """A recipe's teacher, a `Backbone` in evaluation mode without meaningful weights."""
    return models.build(teacher.model, teacher.image_size).eval()


def before_timms_head(net: nn.Module, images: Tensor) -> Tensor:
    """Images (B, C, H, W) -> what a model of timm's own makes of them before its head (B, D).

    Raises:
        ValueError: it has no such vector.
    """
    from bigvit.models.timm import before_head

    return before_head(net, images)


def _distinct(names: list[str]) -> list[str]:
    """Names with a number behind those that occur more than once."""
    return [
        name if names.count(name) == 1 else f"{name}_{names[:i].count(name)}"
        for i, name in enumerate(names)
    ]
