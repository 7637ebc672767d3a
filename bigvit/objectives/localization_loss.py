"""Dense relative localization beside any model: one that bigvit did not build, too."""

from typing import Literal

import torch
from torch import Tensor, nn

from bigvit.models.init import initial_weight
from bigvit.models.output import TokenMap
from bigvit.objectives.drloc import DenseRelativeLocalization
from bigvit.recipe import DRLoc


class LocalizationLoss(nn.Module):
    """Dense relative localization (arXiv:2106.03746): how far apart two tokens of an image lie,
    guessed by an MLP from both. The defaults are the paper's (equation 2, section 5.1, table 15);
    it adds the loss to the model's own with a weight of 0.1 (CvT), 0.5 (Swin) or 0.1 (T2T).

    Its parameters are trained with the model's: give them to the optimizer.
    """

    def __init__(
        self,
        embed_dim: int,
        grid: tuple[int, int],
        *,
        pairs: int | None = 64,
        offsets: Literal["absolute", "signed", "classes", "gaussian"] = "absolute",
        pooled_to: int | None = 7,
        hidden_dim: int = 512,
        hidden_layers: int = 2,
        seed: int = 0,
    ) -> None:
        """Args:
        embed_dim: width D of the tokens.
        grid: tokens down and across.
        pairs: of an image, M; None: every token once, its partner at random (equation 8).
        offsets: what is guessed: equation 1, 3, 5 or 6.
        pooled_to: side to which a longer axis of the grid is averaged first; None: it is not.
        hidden_dim, hidden_layers: of the MLP.
        seed: of the MLP's initial weights.
        """
        super().__init__()
        drloc = DRLoc(
            weight=1.0,
            ramp=None,
            offsets=offsets,
            unit="grid",
            alpha=0.001,
            blocks="last",
            normalised=True,
            pairs=pairs,
            grid=pooled_to,
            pooling="mean",
            hidden_dim=hidden_dim,
            hidden_layers=hidden_layers,
        )
        self.embed_dim, self.grid = embed_dim, grid
        self.localization = DenseRelativeLocalization(drloc, [(embed_dim, grid)])
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(initial_weight(self, name, seed))

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The loss, a float32 scalar, of pairs drawn anew.

        Args:
            features: of patches alone: (B, N, D), row by row, or (B, D, h, w).
            generator: on the features' device; torch's own where it is left out.

        Raises:
            ValueError: they are not of the grid and width.
        """
        (h, w), width, drloc = self.grid, self.embed_dim, self.localization.drloc
        if tuple(features.shape[1:]) not in ((h * w, width), (width, h, w)):
            raise ValueError(
                f"features: {tuple(features.shape)} is not allowed; they must be (B, {h * w}, "
                f"{width}) or (B, {width}, {h}, {w}), patches alone: leave class tokens out"
            )
        tokens = features.flatten(2).transpose(1, 2) if features.ndim == 4 else features
        rows, columns = drloc.pooled(self.grid)
        cells, count = rows * columns, drloc.pairs_of((rows, columns))
        shape = (len(tokens), count, 2)
        pairs = torch.randint(cells, shape, generator=generator, device=tokens.device)
        if drloc.pairs is None:
            pairs[:, :, 0] = torch.arange(cells, device=tokens.device)
        return self.localization.of_maps([TokenMap(tokens, self.grid)], [pairs])
