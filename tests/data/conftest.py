"""Lets the tests here import pictures.py and forms.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
