"""Whether a recipe's data are there, asked before anything heavy is loaded."""

from bigvit.data.sources import open_source
from bigvit.recipe import Data, Digits, Images, Run


def check_data(data: Data, run: Run) -> None:
    """Raise ValueError unless the data can be read. What was listed here is not listed again.

    Raises:
        ValueError: says what was looked for, and where to put it.
    """
    match data:
        case Digits():
            if run.data_root is not None:
                raise ValueError("--data-root: the digits come with scikit-learn; leave it out")
        case Images():
            train = open_source(data, "train", run.data_root)
            test = open_source(data, "test", run.data_root)
            if data.test_images not in (None, len(test)):
                raise ValueError(
                    f"--data-root {run.data_root}: test has {len(test):,} images, but "
                    f"{data.dataset} has {data.test_images:,} in the recipe (data.test_images)"
                )
            for a, b in zip(train.classes, test.classes, strict=True):
                if a != b:
                    raise ValueError(
                        f"--data-root {run.data_root}: training and test images have other "
                        f"classes ({a}, {b})"
                    )
