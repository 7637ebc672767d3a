"""Neighbours, votes and average precision beside what is literally written, in float64."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from bigvit.neighbours import nearest as ours
from bigvit.neighbours.embeddings import unit
from bigvit.neighbours.nearest import average_precisions, nearest, votes


def drawn(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator) + 0.3


def test_votes_are_equation_2_6() -> None:
    queries, searched = unit(drawn(9, 0)), unit(drawn(40, 1))
    classes = torch.arange(40) * 7 % 4
    found = nearest(queries, searched, 11)
    for sigma in (0.07, 0.002, 3.0):
        said = votes(found.cosines, classes[found.places], 4, sigma)
        for row, query in zip(said, queries.double(), strict=True):
            pairs = [
                (float(query @ x), int(y)) for x, y in zip(searched.double(), classes, strict=True)
            ]
            near = sorted(pairs, reverse=True)[:11]
            weights = [math.fsum(math.exp(c / sigma) for c, y in near if y == k) for k in range(4)]
            literal = [weight / sum(weights) for weight in weights]
            assert row.tolist() == pytest.approx(literal, rel=2e-4, abs=1e-12)
        assert torch.allclose(said.sum(dim=1), torch.ones(9, dtype=torch.float64))


def test_votes_are_weighted() -> None:
    cosines = torch.tensor([[0.9, 0.5, 0.5]])
    classes = torch.tensor([[1, 0, 0]])
    assert votes(cosines, classes, 2, 0.07).argmax() == 1
    assert votes(cosines, classes, 2, 100.0).argmax() == 0


@pytest.mark.parametrize("pieces", [(3, 7), (1024, 2**14)])
def test_neighbours_are_those_of_a_whole_sort_and_equals_in_order(
    pieces: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "QUERIES", pieces[0])
    monkeypatch.setattr(ours, "SEARCHED", pieces[1])
    # of few values, exact in float32, with many equals, signs and zeros of both kinds
    queries = torch.tensor([[1.0, 0, 0], [0, -1, 0], [0, 0, 1], [-1, 0, 0]] * 2)
    searched = (torch.randint(-2, 3, (50, 3), generator=torch.manual_seed(0)) * 0.25).float()
    cosines = queries @ searched.T
    order = cosines.sort(dim=1, descending=True, stable=True)
    for k in (1, 8, 50):
        found = nearest(queries, searched, k)
        assert torch.equal(found.places, order.indices[:, :k])
        assert torch.equal(found.cosines, order.values[:, :k])
    assert any(len(row.unique()) < 8 for row in order.values[:, :8])


@pytest.mark.parametrize("pairs", [50, 2**25])
def test_average_precision_is_scikit_learns(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "PAIRS", pairs)
    queries, searched = unit(drawn(12, 2)), unit(drawn(45, 3))
    of, classes = torch.arange(12) % 4, torch.arange(45) * 11 % 3  # none is of the last
    found = torch.cat(list(average_precisions(queries, of, searched, classes)))
    for i, query in enumerate(queries):
        scores, right = searched @ query, classes == of[i]
        if of[i] == 3:
            assert found[i].isnan()
            continue
        its = average_precision_score(right.numpy(), scores.numpy())
        assert float(found[i]) == pytest.approx(its, abs=1e-12)
