"""The best evaluation of a run on its way, and whether better ones still come. What it knows stands
in metrics.jsonl: a resume, and a run that rolls back, know the same."""

import json
from pathlib import Path

from bigvit.checkpoint.best import Scored, ranked, scores, since_best
from bigvit.evaluate import Measured
from bigvit.ranks.joining import Ranks
from bigvit.recipe import Run


class Best:
    """Evaluations by the metric that `--keep-best` names; every rank knows the same."""

    def __init__(self, options: Run, run: Path, ranks: Ranks) -> None:
        self.metric, self.patience = options.keep_best, options.patience
        self.run, self.ranks = run, ranks
        self.scored: list[Scored] = []

    def begin(self, batch: int, evaluation_due: bool) -> None:
        """Training goes on from a place: later evaluations come again. Collective."""
        if self.metric is None:
            return
        known: list[Scored] = []
        with self.ranks.agree_on_error(OSError, raised=OSError):
            if self.ranks.rank == 0:
                known = scores(self.run, self.metric)
        end = batch - 1 if evaluation_due else batch
        text = json.dumps([each for each in known if each.batch <= end])
        self.scored = [Scored(*each) for each in json.loads(self.ranks.handed(text))]

    def add(self, batch: int, counts: Measured, averaged: Measured | None) -> None:
        """An evaluation was made."""
        if self.metric is None:
            return
        of = averaged if self.metric.startswith("ema_") else counts
        assert of is not None, "checked before the start"
        value = of.as_json()[self.metric.removeprefix("ema_")]
        self.scored = [each for each in self.scored if each.batch != batch]
        self.scored.append(Scored(batch, float(value)))

    def is_at(self, batch: int) -> bool:
        """Whether the evaluation after a batch is the best one."""
        return bool(self.scored) and self.first.batch == batch

    @property
    def first(self) -> Scored:
        """The best one."""
        assert self.metric is not None
        return ranked(self.scored, self.metric)[0]

    @property
    def order(self) -> tuple[int, ...]:
        """The batches of evaluations, the best first."""
        return tuple(each.batch for each in ranked(self.scored, self.metric or ""))

    @property
    def over(self) -> bool:
        """Whether as many evaluations as `--patience` says came without a better one."""
        if self.metric is None or self.patience is None:
            return False
        return since_best(self.scored, self.metric) >= self.patience

    def said(self) -> str:
        """Why the run ended where it did."""
        count = since_best(self.scored, self.metric or "")
        return (
            f"no better {self.metric} in {count} evaluation{'s' * (count > 1)}: the best is "
            f"{self.first.value:.4g}, after batch {self.first.batch} (--patience)"
        )
