"""`python -m bigvit.cli` is `bigvit`."""

import sys

from bigvit.cli import main

sys.exit(main())
