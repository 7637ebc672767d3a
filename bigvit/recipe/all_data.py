"""All that can be trained on. No torch here."""

from bigvit.recipe.data import Digits, Images
from bigvit.recipe.detection import Detection
from bigvit.recipe.segmentation import Segmentation

__all__ = ["Data"]

Data = Digits | Images | Segmentation | Detection
