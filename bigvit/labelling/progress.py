"""How far ranks are, and how long it will take."""

import time
from collections.abc import Callable

import torch

from bigvit.ranks.joining import Ranks

SAID = 10.0  # seconds between lines


class Progress:
    """Says on rank 0 how far all are, as far as its own share tells, and how long it will take."""

    def __init__(self, own: int, images: int, ranks: Ranks, say: Callable[[str], None]) -> None:
        self.own, self.images, self.ranks, self.say = own, images, ranks, say
        self.left = int(ranks.sum(torch.tensor([own]))[0])  # of all ranks
        self.done, self.began = 0, time.monotonic()
        self.said = self.began

    def __call__(self, images: int) -> None:
        self.done += images
        now = time.monotonic()
        if self.ranks.rank > 0 or now - self.said < SAID:
            return
        self.said = now
        share, took = self.done / self.own, now - self.began
        there = self.images - self.left + round(self.left * share)
        rate, minutes = self.left * share / took, (took / share - took) / 60
        self.say(
            f"about {there:,} of {self.images:,} images, {rate:,.0f}/s, {minutes:,.1f} min left"
        )
