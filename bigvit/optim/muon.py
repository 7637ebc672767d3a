# pyright: reportPrivateImportUsage=false
"""Muon, exact also where an optimizer sees pieces of matrices."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from bigvit.optim.matrices import Exchange, Matrix, Way
from bigvit.optim.state import fresh_state
from bigvit.recipe import Muon

SMALLEST = 1e-7  # norm that a matrix is divided by, as torch.optim.Muon has it
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class MUON(torch.optim.Optimizer):
    """Muon for groups of `matrices`, AdamW for the others: see `bigvit.recipe.Muon`. A matrix's
    step is torch.optim.Muon's. It keeps one moment of a matrix, and both of what AdamW steps.

    What a tensor holds of matrices is told by `attach`; until then a step changes nothing, as the
    one does that DeepSpeed takes while it is built. Gradients are overwritten.
    """

    def __init__(self, params: Iterable[Any], recipe: Muon, fused: bool = False) -> None:
        """Args: fused: AdamW does its elementwise work in one pass."""
        super().__init__(params, {"lr": 0.0, "fused": fused})
        self.recipe = recipe
        self.matrices: dict[Tensor, list[Matrix]] = {}
        self.exchange: Exchange | None = None
        self.attached = False
        self._ways: dict[tuple[Tensor, ...], Way] = {}

    def attach(self, matrices: Iterable[Matrix], exchange: Exchange | None = None) -> None:
        """Say what the tensors of groups of `matrices` hold: the same matrices in the same order
        on every rank, those too of which a rank has nothing.

        Args:
            exchange: with whom they are shared; None where all are whole here.
        """
        for each in matrices:
            self.matrices.setdefault(each.tensor, []).append(each)
        self.exchange, self.attached = exchange, True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient. Collective where matrices are shared."""
        assert closure is None, "a closure would run the model again"
        if not self.attached:
            return
        group_of: dict[Tensor, dict[str, Any]] = {}
        for group in self.param_groups:
            stepped = [p for p in group["params"] if p.grad is not None]
            for p in stepped:
                fresh_state(self, p)
            if stepped and group["matrices"]:
                self._follow(stepped)
                group_of |= dict.fromkeys(stepped, group)
            elif stepped:
                self._adamw(stepped, group)
        if group_of:
            self._move(group_of)

    def _adamw(self, stepped: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[p] for p in stepped]
        beta1, beta2 = self.recipe.betas
        adamw(
            stepped,
            [p.grad for p in stepped if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=self.defaults["fused"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=self.recipe.eps,
            maximize=False,
        )

    def _follow(self, stepped: list[Tensor]) -> None:
        """Leave in each gradient what is to be orthogonalised of it."""
        torch._foreach_add_([self.state[p]["step"] for p in stepped], 1)
        gradients = [p.grad for p in stepped if p.grad is not None]
        means = [self.state[p]["exp_avg"] for p in stepped]
        torch._foreach_lerp_(means, gradients, 1 - self.recipe.momentum)
        if self.recipe.nesterov:
            torch._foreach_lerp_(gradients, means, self.recipe.momentum)
        else:
            torch._foreach_copy_(gradients, means)

    def _move(self, group_of: dict[Tensor, dict[str, Any]]) -> None:
        """Decay weights, and step them by what lies in their gradients, made orthogonal."""
        for p, group in group_of.items():
            p.mul_(1 - group["lr"] * group["weight_decay"])
        way = self._way(tuple(group_of))
        dtype = DTYPES[self.recipe.ns_precision]
        held: list[Tensor] = []
        for each in way.matrices:
            device = each.tensor.device if self.exchange is None else self.exchange.device
            assert each.tensor.grad is not None
            held.append(_part(each, way.me, each.tensor.grad).to(device, dtype))
        orthogonal = partial(
            newton_schulz, steps=self.recipe.ns_steps, coefficients=self.recipe.coefficients
        )
        for i, update in way(held, orthogonal):
            each = way.matrices[i]
            rate = group_of[each.tensor]["lr"] * self.recipe.adjusted(each.rows, each.columns)
            mine = _part(each, way.me, each.tensor)
            mine.add_(update.to(mine.device), alpha=-rate)

    def _way(self, tensors: tuple[Tensor, ...]) -> Way:
        """How the matrices in some tensors come together; found once."""
        if tensors not in self._ways:
            matrices = [each for tensor in tensors for each in self.matrices[tensor]]
            self._ways[tensors] = Way(matrices, self.exchange)
        return self._ways[tensors]


def _part(matrix: Matrix, rank: int, tensor: Tensor) -> Tensor:
    """This rank's elements of a matrix in the tensor that has them, or in one of its shape."""
    return tensor.view(-1)[matrix.start : matrix.start + len(matrix.held[rank])]


def newton_schulz(matrices: Tensor, steps: int, coefficients: Sequence[float]) -> Tensor:
    """Matrices with all singular values brought near 1, in their own precision: the quintic
    iteration of Jordan's Muon, X <- a X + b (X X') X + c (X X')^2 X, from a norm of 1.

    Args:
        matrices: (B, M, N).
        coefficients: a, b, c.

    Returns:
        (B, M, N).
    """
    a, b, c = coefficients
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    x = matrices / norms.clamp(min=SMALLEST)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
