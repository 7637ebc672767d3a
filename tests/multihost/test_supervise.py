"""The supervisor starts a run again that lost a host: on both, and then on the one that is left."""

import json
import signal
from pathlib import Path

import hosts as two
import pytest
from reference import distance
from small import wait_for
from test_training import ALLOWED, SCHEDULE, YARDSTICK, train_single, weights_of

pytestmark = pytest.mark.multihost

OPTIONS = (
    *SCHEDULE,
    "--micro-batch",
    32,
    "--workers",
    0,
    "--checkpoint-every",
    5,
    "--log-every",
    1,
)


def supervised(hosts: two.Hosts, folder: Path, restarts: int, trouble: str):
    """The supervisor over both hosts, its run folder and what it says."""
    run, output = folder / "run", folder / "output"
    launcher = hosts.launcher(TROUBLE=trouble)[1:]
    script = (Path(__file__).with_name("trouble.py"), "digits_vit", "--run-dir", run, *OPTIONS)
    command = ["bash", two.ROOT / "scripts" / "supervise.sh", restarts, *launcher, *script]
    return hosts.popen("n1", command, output, {"PAUSE": "1"}), run, output


def kill_after(hosts: two.Hosts, name: str, checkpoint: Path) -> None:
    """Kill a host's ranks once a checkpoint is there."""
    wait_for(checkpoint, 90)
    for rank in hosts.ranks(name):
        rank.kill()


@pytest.mark.slow
@pytest.mark.parametrize("losses", [1, 2])
def test_it_goes_on_with_both_hosts_and_then_with_one(losses, hosts, tmp_path):
    process, run, output = supervised(hosts, tmp_path, 3, "slow 0")
    try:
        if losses == 2:
            kill_after(hosts, "n2", run / "checkpoints" / "step_00000005")
        wait_for(run / "checkpoints" / "step_00000015", 90)
        hosts.stop("n2")  # it answers no more
        kill_after(hosts, "n2", run / "checkpoints" / "step_00000015")
        assert two.wait(process, 120) == 0, output.read_text()
    finally:
        two.wait(process, 0)
        hosts.start("n2")
    said = [line for line in output.read_text().splitlines() if line.startswith("supervise:")]
    on = [line for line in said if "slots" in line]
    assert [line.count("slots=1") for line in on] == [2] * losses + [1], said
    ends = [line.split()[1] for line in said if "exit code" in line]
    assert ends == ["error,"] * losses + ["done,"]
    found = distance(weights_of(run), train_single())
    print(f"{said}\n{found:.2e}, {found / YARDSTICK:.2f} yardsticks")
    assert found <= ALLOWED * YARDSTICK


@pytest.mark.slow
def test_a_signal_stops_the_run_on_every_host_and_is_not_a_failure(hosts, tmp_path):
    process, run, output = supervised(hosts, tmp_path, 3, "slow 0")
    wait_for(run / "metrics.jsonl", 90)
    process.send_signal(signal.SIGTERM)
    assert two.wait(process, 60) == 85, output.read_text()
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("requeue", 85)
    assert output.read_text().count("supervise: on") == 1


def test_bad_input_is_not_tried_again(hosts, tmp_path):
    run, output = tmp_path / "run", tmp_path / "output"
    script = (two.ROOT / "scripts" / "train.py", "digits_vit", "--run-dir", run, "--optim.lr", -1)
    command = ["bash", two.ROOT / "scripts" / "supervise.sh", 3, *script]
    assert two.wait(hosts.popen("n1", command, output), 60) == 2
    said = output.read_text()
    assert said.count("error: ") == 1 and "optim.lr" in said
    assert said.count("supervise: ") == 1
