# Sourced by the other scripts: the environment that setup.sh made, or the one that BIGVIT_VENV names.
venv=${BIGVIT_VENV:-.venv}
. "$venv/bin/activate"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# local data need no network
export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}

# where the ranks of a demo meet: MASTER_PORT, or a free port below those that the system hands out
master_port() {
    python - <<'PY'
import os, random, socket

def free(port):
    with socket.socket() as door:
        return door.connect_ex(("127.0.0.1", port)) != 0

ports = iter(lambda: random.randrange(20000, 30000), None)
print(os.environ.get("MASTER_PORT") or next(filter(free, ports)))
PY
}
