"""Where things are kept that can be found again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """XDG_CACHE_HOME/bigvit, or ~/.cache/bigvit; it may not be there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "bigvit")
