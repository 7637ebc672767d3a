"""`python FOLDER/bigvit/hosts/doctor MODULE ARGUMENT...` runs a module of the doctor.

So the doctor starts on every host: `python -m` would import from the current folder first, and what
forbids that (-P) came with Python 3.11.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).parent
    # this bigvit, and after all that is installed, so that nothing beside it is imported
    sys.path[:] = [*(entry for entry in sys.path if entry != str(here)), str(here.parents[2])]
    runpy.run_module(f"bigvit.hosts.doctor.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
