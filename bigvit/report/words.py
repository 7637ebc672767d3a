"""How numbers are said."""

from datetime import datetime

UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def percent(value: float | None, digits: int = 2) -> str:
    """A value in percent, which no line breaks in two; a dash for none."""
    return "–" if value is None else f"{value:.{digits}f}\u00a0%"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    left, said = round(seconds), list[str]()
    if seconds < 10:
        return f"{seconds:.2g} s"
    for name, length in UNITS:
        count, left = divmod(left, length)
        if count or said:
            said.append(f"{count} {name}")
        if len(said) == 2:
            break
    return " ".join(said)


def size(count: float) -> str:
    """Bytes."""
    for name, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:.3g} {name}"
    return f"{count:.0f} B"


def moment(text: object) -> str:
    """A time as files hold it, in UTC."""
    try:
        return f"{datetime.fromisoformat(str(text)):%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return "–"


def counted(count: int, one: str, more: str = "") -> str:
    """1 image, 2 images."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def spoken(value: object) -> str:
    """A value of a recipe or an option."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
