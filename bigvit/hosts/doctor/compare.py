"""What is wrong with hosts, by their facts: each problem names the host, and says what to mend."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from bigvit.data.workers import slots as slots_of
from bigvit.data.workers import usual
from bigvit.hosts.doctor.facts import Facts

T = TypeVar("T")
CLOCK = 2.0  # seconds that clocks may differ by
SHARED = 1 << 30  # bytes of /dev/shm, as NCCL's guide advises for containers


def problems_of(
    facts: Mapping[str, Facts],
    slots: Mapping[str, int],
    asked: Mapping[str, tuple[float, float]],
    room: int,
    image: int = 0,
    batch: int = 0,
) -> Iterator[str]:
    """Every problem of these hosts, and every difference between them.

    Args:
        asked: when each was asked and had answered, by the clock here.
        room: bytes that the run folder is to have room for.
        image: bytes of one in a batch.
        batch: images of the global batch.
    """
    share = batch // (sum(slots.values()) or 1)
    for host, own in facts.items():
        yield from (f"{host}: {problem}" for problem in own.problems)
        yield from (f"{host}: {problem}" for problem in _alone(own, slots[host], room))
        yield from (f"{host}: {problem}" for problem in _loader(own, slots[host], image * share))
        if off := _off(own.clock, asked[host]):
            yield (
                f"{host}: its clock is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}; "
                "let it follow a time server (chrony, or systemd-timesyncd)"
            )
        if own.sees is False:
            yield (
                f"{host}: its run folder is another one than here; give one on a file system that "
                "all hosts share (--run-dir)"
            )
        if len(facts) > 1 and own.address.startswith("127."):
            yield (
                f"{host}: its own name leads to {own.address}, where gloo would listen; name the "
                "network by `bigvit env --interface`, or mend /etc/hosts there"
            )
    for name in dict.fromkeys(name for own in facts.values() for name in own.versions):
        yield from _differing(
            facts, lambda own, name=name: own.versions.get(name, "absent"), name, "install the same"
        )
    yield from _differing(facts, lambda own: kinds(own.devices), "devices", "use hosts of a kind")
    yield from _differing(facts, lambda own: kinds(own.links), "links between GPUs", "see why")
    yield from _differing(
        facts, lambda own: own.recipe or "none", "the recipe's digest", "copy the recipe's file"
    )
    if fast := next((host for host, own in facts.items() if not own.slow), ""):
        for host, own in facts.items():
            if own.slow:
                yield f"{host}: {own.slow}; {fast} has it, and waits for this host in every update"
    known = {host: own for host, own in facts.items() if own.data is not None}
    for split in ("train", "test"):
        yield from _differing(
            known,
            lambda own, split=split: (own.data or {}).get(split, "absent"),
            f"{split} data",
            "copy the data set again: names, classes and order must be the same",
        )


def size(count: int) -> str:
    """Bytes as a person reads them."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _alone(own: Facts, slots: int, room: int) -> Iterator[str]:
    """What is wrong with a host, whatever the others are."""
    if own.devices and len(own.devices) < slots:
        yield f"slots={slots} in the hostfile, and {len(own.devices)} GPUs; say how many there are"
    if own.disk < room:
        yield (
            f"{size(own.disk)} are free for the run folder, and the checkpoints kept need "
            f"{size(room)}; free some, or keep fewer (--keep)"
        )
    if len(own.devices) > 1 and own.shared is not None and own.shared < SHARED:
        yield (
            f"{size(own.shared)} are free in /dev/shm, through which NCCL may send between GPUs; "
            f"give it {size(SHARED)} (a container: --shm-size=1g)"
        )


def _loader(own: Facts, ranks: int, micro_batch: int) -> Iterator[str]:
    """Whether what the data workers of a host make ahead, the largest micro-batches (bytes), fits
    into its memory; an evaluation has workers of its own beside those of training."""
    workers = usual(own.cores, ranks)
    need = 2 * ranks * slots_of(workers) * micro_batch
    if need > own.memory:
        yield (
            f"{size(own.memory)} of memory are free, and {ranks * workers} data workers may fill "
            f"{size(need)} ahead; use a smaller --micro-batch, or fewer --workers"
        )


def _off(clock: tuple[float, float], asked: tuple[float, float]) -> float:
    """Seconds that a clock is surely ahead, beyond what is allowed; negative: behind; or 0.

    It was read first after the question, and last before the answer, so that it is ahead by
    `clock[0] - asked[0]` at most and by `clock[1] - asked[1]` at least.
    """
    most, least = clock[0] - asked[0], clock[1] - asked[1]
    return least if least > CLOCK else most if most < -CLOCK else 0.0


def kinds(names: list[str]) -> str:
    """What there is, and how often."""
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _differing(
    facts: Mapping[str, Facts], value: Callable[[Facts], str], what: str, mend: str
) -> Iterator[str]:
    """Hosts that have another value than most, or than the first."""
    values = {host: value(own) for host, own in facts.items()}
    counts = list(values.values())
    usual = max(dict.fromkeys(counts), key=counts.count, default="")
    for host, own in values.items():
        if own != usual:
            like = next(other for other, theirs in values.items() if theirs == usual)
            yield f"{host}: {what}: {own}, and on {like}: {usual}; {mend}"
