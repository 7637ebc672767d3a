# Sourced by the other scripts: the environment that setup.sh made, or the one that BIGVIT_VENV names.
venv=${BIGVIT_VENV:-.venv}
. "$venv/bin/activate"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# local data need no network
export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
