"""What is asked, of which images: looked at before a model is read or an image decoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bigvit.checkpoint.asked import Model
from bigvit.checkpoint.manifest import read_manifest
from bigvit.checkpoint.of_timm import TIMM
from bigvit.checkpoint.run import class_names, classes_map_of, find_checkpoint, run_of
from bigvit.data.levels import Level, own_level, read_level
from bigvit.data.sources import Source, Split, matched, open_source
from bigvit.data.workers import workers_for
from bigvit.labelling.predict import asked
from bigvit.labelling.whole import WHOLE
from bigvit.neighbours.embeddings import FOLDER, Embedded, embedded
from bigvit.ranks.joining import alone
from bigvit.recipe.store import recipe_from_json


@dataclass(frozen=True)
class Given:
    """A model's name, and a data set."""

    name: str
    train: Source
    test: Source | None  # where it is asked for
    level: Level  # at which classes are told apart
    folder: Path | None  # where embeddings are kept
    ema: bool
    other_classes: bool

    def model(self) -> Model:
        """The model that is named.

        Raises:
            ValueError: it cannot be read, or its classes are others.
        """
        model = asked(self.name, self.ema, alone())
        if not self.other_classes:
            _refuse_others(self.name, model.classes, self.train.classes)
        return model

    def embedded(
        self, model: Model, split: Split, batch_size: int, workers: int | None
    ) -> Embedded:
        """Training or test images, both as test images are seen."""
        source = self.train if split == "train" else self.test
        assert source is not None
        return embedded(model, source, split, batch_size, workers_for(workers), self.folder)


def given(
    name: str,
    root: Path | None,
    ema: bool,
    classes_map: Path | None,
    keep: Path | None,
    other_classes: bool,
    tested: bool = True,
) -> Given:
    """Open the data set, and see whether it fits.

    Args:
        name: a run, a checkpoint, an export's folder, or timm:NAME.
        root: where the data set is.
        classes_map: a file with a coarser class of each; None: the data set's own.
        keep: where embeddings are kept; None: beside a run, and nowhere of other models.
        other_classes: whether the model may have been trained on others.
        tested: whether test images are needed.

    Raises:
        ValueError: something is not there, or does not fit.
    """
    data, names, folder, its_map = WHOLE, None, keep, None
    if is_run(name):
        checkpoint = find_checkpoint(Path(name))
        data = recipe_from_json(read_manifest(checkpoint).recipe).data
        names, its_map = class_names(run_of(checkpoint), data.classes), classes_map_of(checkpoint)
        folder = run_of(checkpoint) / FOLDER if keep is None else keep
    train = open_source(data, "train", root, its_map)
    test = matched(open_source(data, "test", root, its_map), train) if tested else None
    if not other_classes:
        _refuse_others(name, names, train.classes)
    level = (
        own_level(train.classes) if classes_map is None else read_level(classes_map, train.classes)
    )
    return Given(name, train, test, level, folder, ema, other_classes)


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
