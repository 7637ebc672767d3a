#!/usr/bin/env bash
# Make .venv with the tested versions of constraints.txt, and install bigvit there, editable.
# A second run takes seconds. BIGVIT_VENV=DIR takes an existing environment, and adds what it lacks.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${BIGVIT_VENV:-.venv}
python=${PYTHON:-python3}

# what this environment was made from: the same files, nothing to do
wanted=$(cat pyproject.toml constraints.txt scripts/setup.sh bigvit/csrc/* | cksum)
stamp=$venv/.bigvit-installed
here=$(pwd -P)
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$wanted $here" ]; then
    echo "setup: $venv is up to date"
    exit 0
fi
if [ ! -x "$venv/bin/python" ]; then
    [ -z "${BIGVIT_VENV:-}" ] || { echo "setup: BIGVIT_VENV=$venv is no environment" >&2; exit 2; }
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
        echo "setup: $python is older than 3.10; say PYTHON=/path/to/a/newer/one" >&2; exit 2; }
    "$python" -m venv "$venv"
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
started=$SECONDS
# torch first: deepspeed's build asks for it
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    pip install -q -c constraints.txt torch torchvision
fi
pip install -q 'setuptools>=77' wheel  # what pyproject.toml builds with; a venv of Python 3.10 has an older one
if [ -n "${BIGVIT_VENV:-}" ]; then
    pip install -q --no-build-isolation -e '.[dev]'
else
    pip install -q --no-build-isolation -c constraints.txt -e '.[dev]'
fi
"$venv/bin/python" -c 'from bigvit.data.photo import without; without() and print("setup:", without())'
echo "$wanted $here" > "$stamp"
echo "setup: $venv is ready after $((SECONDS - started)) s"
