"""The arguments of the `bigvit` commands: each option once, each number within its bounds."""

import argparse
from collections.abc import Sequence
from typing import Any

from bigvit.recipe.bounds import BOUNDS
from bigvit.recipe.words import check_words


class Once(argparse.Action):
    """Stores an option's value, where argparse by itself would keep the last of two in silence."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given: set[str] = vars(namespace).setdefault("given_options", set())
        if option_string and self.dest in given:
            raise ValueError(f"{option_string} is given twice; give it once")
        given.add(self.dest)
        if self.type in (int, float):
            for number in values if isinstance(values, list) else [values]:
                if not BOUNDS[self.dest].allows(number):
                    raise ValueError(
                        f"{option_string}: {number} is not allowed; it must be {BOUNDS[self.dest]}"
                    )
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """A parser whose options are all `Once`; those of its commands are of its kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register("action", None, Once)

    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Sequence[str]
    ) -> argparse.Namespace:
        """What is given.

        Raises:
            ValueError: a word or number is not allowed; the message names its option.
        """
        if list(args[:1]) != ["launch"]:  # whose words are deepspeed's, and looked at there
            check_words(args)
        return super().parse_args(args)
