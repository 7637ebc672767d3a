"""Many cases in one test, where each takes no time."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each_of(
    names: str | tuple[str, ...], cases: Iterable[Any]
) -> Callable[..., Callable[..., None]]:
    """`pytest.mark.parametrize` within one test: all cases are tried, and those that fail are said.

    Args:
        names: the test's arguments, as there: "a" or ("a", "b").
        cases: their values.
    """
    one = isinstance(names, str)
    wanted: tuple[str, ...] = (names,) if isinstance(names, str) else names
    values = [(case,) if one else tuple(case) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def tried(**fixtures: Any) -> None:
            errors: list[Exception] = []
            said: list[str] = []
            for case in values:
                given = dict(zip(wanted, case, strict=True))
                try:
                    test(**given, **fixtures)
                except Exception as error:
                    errors.append(error)
                    said.append(f"{given}: {type(error).__name__}: {error}")
            if errors:
                head = f"{len(errors)} of {len(values)} cases fail; above is the first\n"
                raise AssertionError(head + "\n".join(said)) from errors[0]

        signature = inspect.signature(test)
        left = [p for p in signature.parameters.values() if p.name not in wanted]
        assert len(left) + len(wanted) == len(signature.parameters) and values
        tried.__signature__ = signature.replace(parameters=left)  # pyright: ignore
        tried.__name__, tried.__doc__, tried.__module__ = (
            test.__name__,
            test.__doc__,
            test.__module__,
        )
        return tried

    return decorate
