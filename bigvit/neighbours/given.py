"""What is asked, of which images: looked at before a model is read or an image decoded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, get_args

from bigvit.checkpoint.asked import Model
from bigvit.checkpoint.manifest import read_manifest
from bigvit.checkpoint.of_timm import TIMM
from bigvit.checkpoint.run import class_names, classes_map_of, find_checkpoint, run_of
from bigvit.data.levels import Level, coarser_level, own_level, read_level, read_map
from bigvit.data.sources import Source, Split, find_level, matched, open_own
from bigvit.data.workers import workers_for
from bigvit.labelling.predict import asked
from bigvit.labelling.whole import WHOLE
from bigvit.neighbours.embeddings import FOLDER, Embedded, embedded
from bigvit.ranks.joining import Ranks, alone
from bigvit.ranks.stopping import StopRequest
from bigvit.recipe import Data, Digits
from bigvit.recipe.data import DigitsLevel
from bigvit.recipe.data import Level as OwnLevel
from bigvit.recipe.store import recipe_from_json


class Ready(NamedTuple):
    """What the ranks made, on the first of them."""

    model: Model
    embedded: Mapping[Split, Embedded | None]


@dataclass(frozen=True)
class Given:
    """A model's name, and a data set."""

    name: str
    train: Source
    test: Source | None  # where it is asked for
    level: Level  # at which classes are told apart, of the data set's own
    folder: Path | None  # where embeddings are kept
    ema: bool
    other_classes: bool
    trained: Level  # the level that a run has learned; of other models the data set's own classes
    trunk: bool
    coarse: Level | None  # by which a ranking is conditioned
    shown: Mapping[str, Level]  # at which it is shown what is right, the finest first
    ready: Ready | None = None

    def prepare(
        self,
        ranks: Ranks,
        batch_size: int,
        workers: int | None,
        stop: StopRequest | None = None,
    ) -> "Given":
        """The same, with what `model` and `embedded` give on the first rank made. Collective.

        Raises:
            Stopped: `stop` was asked.
            ValueError: on every rank; as these say.
        """
        with ranks.agree_on_error(ValueError, OSError, raised=ValueError):
            model = self._model(ranks)
        splits: tuple[Split, ...] = ("train",) if self.test is None else ("train", "test")
        how = (batch_size, workers_for(workers), self.folder, ranks, stop)
        made: dict[Split, Embedded | None] = {
            split: embedded(model, self._source(split), split, *how) for split in splits
        }
        return replace(self, ready=Ready(model, made))

    def model(self) -> Model:
        """The model that is named.

        Raises:
            ValueError: it cannot be read, or its classes are others.
        """
        return self._model(alone()) if self.ready is None else self.ready.model

    def _model(self, ranks: Ranks) -> Model:
        model = asked(self.name, self.ema, ranks, self.trunk)
        if not self.other_classes:
            _refuse_others(self.name, model.classes, self.trained.classes)
        return model

    def embedded(
        self, model: Model, split: Split, batch_size: int, workers: int | None
    ) -> Embedded:
        """Training or test images, both as test images are seen."""
        if self.ready is not None:
            made = self.ready.embedded[split]
        else:
            how = (batch_size, workers_for(workers), self.folder)
            made = embedded(model, self._source(split), split, *how)
        assert made is not None, "the first rank"
        return made

    def _source(self, split: Split) -> Source:
        source = self.train if split == "train" else self.test
        assert source is not None
        return source


def given(
    name: str,
    root: Path | None,
    ema: bool,
    level: str | None,
    classes_map: Path | None,
    keep: Path | None,
    other_classes: bool,
    tested: bool = True,
    trunk: bool = False,
    coarse: str | None = None,
    shown: Sequence[str] | None = None,
) -> Given:
    """Open the data set, and see whether it fits.

    Args:
        name: a run, a checkpoint, an export's folder, or timm:NAME.
        root: where the data set is.
        level: at which classes are told apart, as `data.level` names it; None: that which a run has
            learned, and of other models the data set's own.
        classes_map: a file that says a coarser class of each, instead of a level.
        keep: where embeddings are kept; None: beside a run, and nowhere of other models.
        other_classes: whether the model may have been trained on others.
        tested: whether test images are needed.
        trunk: whether features are the trunk's also where an objective has projected them.
        coarse: by which a ranking is conditioned: a file of coarse classes, a level's name, or
            "trained": that which the run has learned.
        shown: levels, from fine to coarse, at which it is shown what is right; the data set's own
            classes come first.

    Raises:
        ValueError: something is not there, or does not fit.
    """
    data, names, folder, its_map = WHOLE, None, keep, None
    if is_run(name):
        checkpoint = find_checkpoint(Path(name))
        data = recipe_from_json(read_manifest(checkpoint).recipe).data
        names, its_map = class_names(run_of(checkpoint), data.classes), classes_map_of(checkpoint)
        folder = run_of(checkpoint) / FOLDER if keep is None else keep
    train = open_own(data, "train", root)
    test = matched(open_own(data, "test", root), train) if tested else None
    trained = find_level(data.level, train.classes, root, its_map)
    if not other_classes:
        _refuse_others(name, names, trained.classes)
    told = trained
    if classes_map is not None:
        told = read_level(classes_map, train.classes)
    elif level is not None:
        told = level_of(level, data, train.classes, root)

    def named(name: str, flag: str) -> Level:
        if name == "trained":
            return trained
        if Path(name).is_file():
            return coarser_level(read_map(Path(name), flag), train.classes, f"{flag} {name}")
        return level_of(name, data, train.classes, root, flag)

    conditioned = None if coarse is None else named(coarse, "--coarse")
    each = {"own": own_level(train.classes)} if shown is not None else {}
    each |= {Path(name).stem: named(name, "--levels") for name in shown or ()}
    more = (folder, ema, other_classes, trained, trunk, conditioned, each)
    return Given(name, train, test, told, *more)


def level_of(
    name: str, data: Data, classes: Sequence[str], root: Path | None, flag: str = "--level"
) -> Level:
    """A level of a data set's own classes by its name; "own" is that of digits, too.

    Raises:
        ValueError: there is none of that name, or it cannot be had of these data.
    """
    names = get_args(DigitsLevel if isinstance(data, Digits) else OwnLevel)
    if name == "own":
        return own_level(classes)
    if name in names and name != "map":
        return find_level(name, classes, root)
    listed = ", ".join(dict.fromkeys(["own", *(each for each in names if each != "map")]))
    raise ValueError(f"{flag} {name}: these data have no such level; choose of {listed}")


def is_run(name: str) -> bool:
    """Whether a model's name is that of a run or checkpoint."""
    return not name.startswith(TIMM) and not (Path(name) / "model.safetensors").is_file()


def refuse_too_many(count: int, images: int, option: str) -> None:
    """Raise ValueError where there are fewer images than are to be near."""
    if count > images:
        raise ValueError(
            f"{option} {count}: there are {images:,} training images; choose no more than these"
        )


def _refuse_others(name: str, known: Sequence[str] | None, classes: Sequence[str]) -> None:
    if known is None or set(known) == set(classes):
        return
    strange = sorted(set(classes) - set(known)) or sorted(set(known) - set(classes))
    raise ValueError(
        f"--data-root: its {len(classes):,} classes are not the {len(known):,} that {name} was "
        f"trained on ({strange[0]!r}, ...); choose another, or say that it is meant: "
        "--other-classes"
    )
