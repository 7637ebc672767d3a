"""Rankings conditioned by coarse classes, beside equation 2.5 in float64 and scikit-learn's mAP."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from bigvit.neighbours.conditioned import (
    odds_of_logits,
    odds_of_neighbours,
    odds_of_oracle,
    odds_of_shares,
)
from bigvit.neighbours.embeddings import unit
from bigvit.neighbours.nearest import (
    Condition,
    average_precisions,
    nearest_conditioned,
    ranked,
)


def drawn(count: int, seed: int, width: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator) + 0.3


QUERIES, SEARCHED = unit(drawn(12, 2)), unit(drawn(45, 3))
CLASSES = torch.arange(45) * 11 % 6
COARSE = CLASSES // 2  # three of six
OF = torch.arange(12) % 6


def test_odds_are_those_of_softmax() -> None:
    logits = drawn(12, 4, 3) * 3
    p = logits.double().softmax(dim=1)
    assert torch.allclose(odds_of_logits(logits), (p / (1 - p)).log(), rtol=1e-9)
    assert torch.allclose(odds_of_shares(p), (p / (1 - p)).log(), rtol=1e-9)
    sure = odds_of_logits(torch.tensor([[200.0, 0.0, -300.0]]))  # whose p is 1 and 0 in float
    assert sure[0].tolist() == pytest.approx([200, -200, -500])
    assert odds_of_logits(torch.tensor([[3.0]])).tolist() == [[math.inf]]
    assert odds_of_shares(torch.tensor([[1.0, 0.0]]).double()).tolist() == [[math.inf, -math.inf]]


def literal(odds: Tensor, query: int) -> Tensor:
    cosines = SEARCHED.double() @ QUERIES[query].double()
    return cosines + odds[query, COARSE]


def test_conditioned_map_is_scikit_learns() -> None:
    odds = odds_of_logits(drawn(12, 5, 3))
    condition = Condition(odds, COARSE)
    found = torch.cat(list(average_precisions(QUERIES, OF, SEARCHED, CLASSES, condition)))
    plain = torch.cat(list(average_precisions(QUERIES, OF, SEARCHED, CLASSES)))
    for i in range(12):
        its = average_precision_score((CLASSES == OF[i]).numpy(), literal(odds, i).numpy())
        assert float(found[i]) == pytest.approx(its, abs=1e-12)
    assert not torch.allclose(found, plain)
    near = nearest_conditioned(QUERIES, SEARCHED, 7, condition)
    for i in range(12):
        assert near.places[i].tolist() == literal(odds, i).argsort(descending=True)[:7].tolist()


def test_an_oracle_puts_its_class_first_by_cosine() -> None:
    condition = Condition(odds_of_oracle(OF // 2, 3), COARSE)
    found = torch.cat(list(average_precisions(QUERIES, OF, SEARCHED, CLASSES, condition)))
    for i, order in enumerate(ranked(QUERIES, SEARCHED, condition)):
        cosines = (SEARCHED @ QUERIES[i]).tolist()
        own = [COARSE[j] == OF[i] // 2 for j in range(45)]
        wanted = sorted(range(45), key=lambda j: (not own[j], -cosines[j]))
        assert order.tolist() == wanted
        scores = torch.tensor(cosines) + 10 * torch.tensor(own)
        its = average_precision_score((CLASSES == OF[i]).numpy(), scores.numpy())
        assert float(found[i]) == pytest.approx(its, abs=1e-12)


def test_neighbours_say_odds_by_equation_2_6() -> None:
    found = odds_of_neighbours(QUERIES, SEARCHED, COARSE, 3)
    for query, row in zip(QUERIES.double(), found, strict=True):
        pairs = sorted(
            ((float(query @ x), int(c)) for x, c in zip(SEARCHED.double(), COARSE, strict=True)),
            reverse=True,
        )[:20]
        each = [math.fsum(math.exp(c / 0.07) for c, y in pairs if y == k) for k in range(3)]
        for k, odd in enumerate(row.tolist()):
            rest = sum(each) - each[k]
            wanted = math.log(each[k] / rest) if each[k] and rest else None
            assert wanted is None or odd == pytest.approx(wanted, abs=1e-3)
