"""Rankings conditioned by a coarse prediction (thesis section 2.3.2, equation 2.5).

Shapes: Q queries, N images that are searched, k neighbours, C coarse classes.
"""

import torch
from torch import Tensor

from bigvit.neighbours.nearest import QUERIES, nearest, votes

NEIGHBOURS, TEMPERATURE = 20, 0.07
"""Of the kNN classifier (equation 2.6) that predicts coarse classes where the model's does not."""


def odds_of_logits(logits: Tensor) -> Tensor:
    """log(p / (1 - p)) of each class, (Q, C) float64, of p = softmax(logits): a logit less the
    logarithm of the sum of the others' exponentials, never by way of p, which may round to 1."""
    x = logits.double()
    none = torch.full_like(x[:, :1], -torch.inf)
    before = torch.cat([none, x.logcumsumexp(dim=1)[:, :-1]], dim=1)
    after = torch.cat([none, x.flip(1).logcumsumexp(dim=1)[:, :-1]], dim=1).flip(1)
    return x - torch.logaddexp(before, after)


def odds_of_shares(shares: Tensor) -> Tensor:
    """The same of what classes have each, (Q, C) float64, not negative: of a class that has
    nothing minus infinity, and of one that has all infinity."""
    others = 1 - torch.eye(shares.shape[1], dtype=shares.dtype, device=shares.device)
    return shares.log() - (shares @ others).log()


def odds_of_oracle(of: Tensor, count: int) -> Tensor:
    """The same where the coarse class (Q,) is known: p is 1 of it, and 0 of the others."""
    odds = torch.full((len(of), count), -torch.inf, dtype=torch.float64, device=of.device)
    return odds.scatter_(1, of[:, None], torch.inf)


def odds_of_neighbours(queries: Tensor, searched: Tensor, classes: Tensor, count: int) -> Tensor:
    """The same by equation 2.6, of the coarse classes (N,) of what is near."""
    found = nearest(queries, searched, min(NEIGHBOURS, len(searched)))
    pieces = zip(found.cosines.split(QUERIES), classes[found.places].split(QUERIES), strict=True)
    shares = [votes(cosines, near, count, TEMPERATURE) for cosines, near in pieces]
    return odds_of_shares(torch.cat(shares))
