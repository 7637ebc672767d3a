"""What is trained: a model with its objectives, as one module that an engine shards whole."""

from typing import Any

import torch
from torch import Tensor, nn

from bigvit import models, objectives
from bigvit.data.batch import Batch
from bigvit.data.mix import draw, mix_images, mix_targets
from bigvit.models import Output
from bigvit.recipe import Images, Objective, Recipe

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""A recipe's precision as torch's."""


class Task(nn.Module):
    """Turns a batch into named, already weighted losses, whose sum is to be minimised."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.model = models.build(recipe.model, recipe.data.image_size)
        if recipe.trainable == "attention":
            for name, parameter in self.model.named_parameters():
                trained = ".attn." in name or name.startswith(("head.", "pos_embed"))
                parameter.requires_grad_(trained)
        self.names = _distinct([objectives.name(item) for item in recipe.objectives])
        self.heads = nn.ModuleDict()  # what only training needs
        for name, item in zip(self.names, recipe.objectives, strict=True):
            if head := objectives.head(item, recipe.model, recipe.data.image_size):
                self.heads[name] = head
        every = any(map(objectives.every_block, recipe.objectives))
        self.wanted = range(recipe.model.depth) if every else ()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise every parameter from the recipe's seed."""
        for name, parameter in self.named_parameters():
            parameter.copy_(self.initial_weight(name))

    def initial_weight(self, name: str) -> Tensor:
        """What a parameter is at first, or a buffer of `statistics`; float32."""
        if name.startswith("model."):
            name = name.removeprefix("model.")
            return models.initial_weight(self.model, name, self.recipe.seed)
        return models.initial_weight(self, name, self.recipe.seed)

    def statistics(self) -> dict[str, Tensor]:
        """Buffers that training changes: what batches were like. Others follow from the recipe."""
        kept = self.state_dict().keys()
        return {name: buffer for name, buffer in self.named_buffers() if name in kept}

    def recompute(self, share: float) -> None:
        """Recompute this share of the blocks in backward. Changes no result."""
        self.model.recompute(share)

    def compile_blocks(self) -> None:
        """Compile each block; after `recompute`, which it must see. Names stay."""
        self.model.compile_blocks()

    def forward(self, batch: Batch, predict: bool = False) -> dict[str, Tensor]:
        """The weighted losses of a training batch, float32 scalars by name.

        Args:
            predict: nothing but "logits" (B, K), with nothing dropped or mixed. It has to come in
                by this door: stage 3 starts anew at the outermost module's, and would otherwise
                expect the weights of the last forward pass in the next.
        """
        if predict:
            return {"logits": self.predict(batch)}
        images, targets = self.inputs(batch)
        output = self.model(self._to_model(images), batch.draws.get("model"), self.wanted)
        return {
            name: self._loss(name, objective, output, targets, batch)
            for name, objective in zip(self.names, self.recipe.objectives, strict=True)
        }

    def _loss(
        self, name: str, objective: Objective, output: Output, targets: Tensor, batch: Batch
    ) -> Tensor:
        epoch = batch.number / self.recipe.updates_per_epoch
        factor = objectives.factor(objective, epoch, self.recipe.schedule.epochs)
        if name not in self.heads:
            return factor * objectives.loss(objective, output, targets)
        pairs = [batch.draws[key] for key in batch.draws if key.startswith(f"{name}_pairs_")]
        return factor * objectives.loss(objective, output, targets, self.heads[name], pairs)

    def inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W), normalised and mixed, and targets (B, K), float32."""
        images = self.normalise(batch.images)
        targets = objectives.dense(batch.targets, self.recipe.model.num_classes)
        if (group := self.recipe.data.mixing_group) is not None:
            images = mix_images(images, batch.draws, group)
            targets = mix_targets(targets, batch.draws, group)
        return images, targets

    def predict(self, batch: Batch) -> Tensor:
        """Logits (B, K), nothing dropped, and by the statistics of training."""
        training = self.training
        self.eval()
        logits = self.model(self.pixels(batch.images)).logits
        self.train(training)
        return logits

    def pixels(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) uint8 as the model takes them, nothing mixed."""
        return self._to_model(self.normalise(images))

    def draws(self, number: int, span: tuple[int, int]) -> dict[str, Any]:
        """Everything random about positions [start, stop) of a global batch, made on the host."""
        seed, data = self.recipe.seed, self.recipe.data
        draws = {"model": self.model.draws(seed, number, span)}
        if isinstance(data, Images) and data.mix is not None:
            draws |= draw(data.mix, data.image_size, seed, number, span)
        for name, item in zip(self.names, self.recipe.objectives, strict=True):
            model, size = self.recipe.model, data.image_size
            draws |= objectives.draws(item, name, model, size, seed, number, span)
        return draws

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are not decayed although they are matrices."""
        return {f"model.{name}" for name in self.model.no_weight_decay()}

    def layer_id(self, name: str) -> int:
        """Depth of a parameter in the model; of a head's, the deepest."""
        if name.startswith("model."):
            return self.model.layer_id(name.removeprefix("model."))
        return self.layers

    @property
    def layers(self) -> int:
        """The deepest layer_id."""
        return self.model.layer_id("head.weight")

    def _to_model(self, images: Tensor) -> Tensor:
        """Normalised images in the model's own precision."""
        # not by its name: seen outside its module, stage 3 would take it for another module's too
        return images.to(next(self.model.parameters()).dtype)

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 pixels (B, C, H, W) -> normalised, float32."""
        data = self.recipe.data
        mean = torch.tensor(data.mean, device=images.device).view(1, -1, 1, 1)
        std = torch.tensor(data.std, device=images.device).view(1, -1, 1, 1)
        return (images.float() / 255 - mean) / std


def _distinct(names: list[str]) -> list[str]:
    """Names with a number behind those that occur more than once."""
    return [
        name if names.count(name) == 1 else f"{name}_{names[:i].count(name)}"
        for i, name in enumerate(names)
    ]
