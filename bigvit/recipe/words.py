# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Words that people and files give: text that can be a name or a path, and JSON that says one thing
once. No torch here."""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bigvit.recipe.bounds import shown

MOST = 4095  # bytes of a path, and 255 of a name in it: Linux's limits
DEEPEST = 64  # levels of JSON
UNPRINTED = ("Cc", "Zl", "Zp")  # control characters, and what ends a line


def fault(text: str) -> str:
    """Why a text can be neither a name nor a path; nothing where it can."""
    if not text.strip():
        return "it is empty"
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return "it holds bytes that are not UTF-8"
    for character in text:
        if unicodedata.category(character) in UNPRINTED:
            return f"it holds the character {character!a}"
    longest = max(map(len, encoded.split(b"/")))
    if len(encoded) > MOST or longest > 255:
        return f"a path has at most {MOST:,} bytes, and a name in it at most 255"
    return ""


def check_text(called: str, text: str) -> None:
    """Raise ValueError where a text can be neither a name nor a path."""
    if reason := fault(text):
        raise ValueError(f"{called}: {shown(ascii(text))} is not allowed; {reason}")


def check_words(words: Iterable[str]) -> None:
    """Check the words of a command line before they are parsed.

    Raises:
        ValueError: one is empty, or nothing that can be a value; it names the option.
    """
    option = "the command line"
    for word in words:
        value = word
        if re.match("--?[A-Za-z]", word):
            name, equals, value = word.partition("=")
            option = shown(ascii(name)[1:-1])
            value = value if equals else name
        check_text(option, value)


def check_once(words: Sequence[str]) -> None:
    """Refuse an option that is given twice, of which the parser would take the last in silence.

    Raises:
        ValueError: names it.
    """
    given: dict[str, str] = {}
    for word in words:
        if not re.match("--[A-Za-z]", word):
            continue
        option = word.partition("=")[0]
        name = re.sub(r"^--((?:.*\.)?)no-", r"--\1", option.replace("_", "-"))
        if name in given:
            raise ValueError(
                f"{option} is given twice"
                + (f" (as {given[name]} before)" if given[name] != option else "")
                + "; give it once, with all its values behind it"
            )
        given[name] = option


def read_json(path: Path) -> Any:
    """A file's JSON, where it is what the standard allows and no key stands twice.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not such JSON; the message says why, and does not name the file.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is not a plain file")
    try:
        value = json.loads(
            path.read_text(encoding="utf-8"),
            object_pairs_hook=_object,
            parse_constant=_refuse,
            parse_float=_finite,
        )
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST}") from None
    if not _within([value], DEEPEST):
        raise ValueError(f"it is nested deeper than {DEEPEST}")
    return value


def _within(value: Any, depth: int) -> bool:
    """Whether nothing is nested deeper than this."""
    items: Any = value.values() if isinstance(value, dict) else value
    inner = [item for item in items if isinstance(item, dict | list)]
    return not inner or depth > 0 and all(_within(item, depth - 1) for item in inner)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!a} stands there twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number that JSON has")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{shown(text)} is too large a number")
    return number
