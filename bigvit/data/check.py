"""Whether a recipe's data are there, asked before anything heavy is loaded."""

from bigvit.recipe import Data, Digits, Images, Run


def check_data(data: Data, run: Run) -> None:
    """Raise ValueError unless the data can be read.

    Raises:
        ValueError: says what was looked for, and where to put it.
    """
    match data:
        case Digits():
            if run.data_root is not None:
                raise ValueError("--data-root: the digits come with scikit-learn; leave it out")
        case Images():
            raise ValueError(
                "this version reads no ImageNet yet: recipes on it can be listed, shown and "
                "counted; train digits_vit, or a recipe of your own on its data"
            )
