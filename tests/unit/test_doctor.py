"""What the doctor says of hosts' facts, and of what it cannot do."""

import json
from dataclasses import asdict, replace

import pytest

from bigvit.cli import main
from bigvit.cli.doctor import _answer, _print_sameness, _print_table, _room
from bigvit.data.workers import shape_of, slot_bytes
from bigvit.hosts.doctor import facts
from bigvit.hosts.doctor.compare import problems_of
from bigvit.hosts.doctor.facts import Facts
from bigvit.hosts.doctor.meet import Meeting, meet
from bigvit.hosts.hostfile import Done
from bigvit.recipe.find import find_recipe

SOUND = Facts(
    versions={"python": "3.11.7", "torch": "2.14.1"},
    devices=["H100 80 GB"] * 8,
    links=["NV18"],
    cores=96,
    memory=10**12,
    shared=10**11,
    disk=10**13,
    sees=True,
    addresses={"10.0.0.1": "eth0"},
    address="10.0.0.1",
    recipe="abc",
    data={"train": "6 images, digest 1", "test": "2 images, digest 2"},
    slow="",
    problems=[],
    clock=(100.5, 110.0),
)


def problems(asked: tuple[float, float] = (100.0, 110.1), room: int = 0, **changed) -> list[str]:
    """The problems of three hosts, the second of which is another."""
    known = {"n1": SOUND, "n2": replace(SOUND, **changed), "n3": SOUND}
    slots = dict.fromkeys(known, 8)
    when = dict.fromkeys(known, (100.0, 110.1)) | {"n2": asked}
    return list(problems_of(known, slots, when, room))


def test_equal_hosts_have_no_problems():
    assert problems() == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"versions": {"python": "3.11.7", "torch": "2.13.0"}}, "torch: 2.13.0, and on n1: 2.14.1"),
        ({"versions": {"python": "3.11.7"}}, "torch: absent, and on n1: 2.14.1"),
        ({"links": ["PIX", "SYS"]}, "links between GPUs: 1 x PIX, 1 x SYS, and on n1: 1 x NV18"),
        ({"recipe": "abd"}, "the recipe's digest: abd, and on n1: abc"),
        ({"sees": False}, "its run folder is another one"),
        ({"address": "127.0.1.1"}, "its own name leads to 127.0.1.1"),
        ({"shared": 64 << 20}, "67.1 MB are free in /dev/shm, through which NCCL may send"),
        ({"problems": ["torn"]}, "torn"),
        ({"slow": "by Pillow"}, "by Pillow; n1 has it, and waits for this host in every update"),
        ({"data": {**(SOUND.data or {}), "test": "3"}}, "test data: 3, and on n1: 2 images"),
    ],
)
def test_a_host_that_differs_is_named(changed, said):
    (found,) = problems(**changed)
    assert found.startswith(f"n2: {said}")


def test_hosts_without_the_extension_alone_are_shown_and_no_problem(capsys):
    slow = {host: replace(SOUND, slow="by Pillow, as it was not built") for host in ("a", "b")}
    when = dict.fromkeys(slow, (100.0, 110.1))
    assert list(problems_of(slow, dict.fromkeys(slow, 8), when, 0)) == []
    _print_table(slow, {})
    _print_sameness(slow)
    said = capsys.readouterr().out
    assert said.count(" by Pillow  ") == 2 and "note     by Pillow, as it was not built\n" in said


def test_fewer_devices_than_slots_are_named():
    first, second = problems(devices=["H100 80 GB"] * 4)
    assert first.startswith("n2: slots=8 in the hostfile, and 4 GPUs")
    assert second.startswith("n2: devices: 4 x H100 80 GB, and on n1: 8 x H100 80 GB")


def test_the_most_hosts_are_right_and_of_two_the_first():
    assert problems(recipe=None)[0].startswith("n2: the recipe's digest: none")
    known = {"a": SOUND, "b": replace(SOUND, recipe="x"), "c": replace(SOUND, recipe="x")}
    when = dict.fromkeys(known, (100.0, 110.1))
    (found,) = problems_of(known, dict.fromkeys(known, 8), when, 0)
    assert found.startswith("a: the recipe's digest: abc, and on b: x")


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        ((100.5, 110.0), ""),  # asked at 100, answered at 110.1
        ((102.3, 112.0), ""),  # 1.9 s ahead at least
        ((102.9, 112.4), "2.3 s ahead"),
        ((98.2, 107.7), ""),
        ((97.7, 107.2), "2.3 s behind"),
    ],
)
def test_a_clock_is_off_where_the_round_trip_cannot_explain_it(clock, said):
    found = problems(clock=clock)
    assert len(found) == bool(said) and all(f"n2: its clock is {said}" in one for one in found)


def test_the_run_folder_needs_room_for_the_checkpoints_that_are_kept():
    recipe = find_recipe("deit3_h14_in1k_126")[1]
    room = _room(recipe)
    assert room == recipe.model.parameters(126) * 12 * 4  # three are kept, and one is written
    assert _room(replace(recipe, ema=0.9999)) == room // 12 * 16
    (found,) = problems(disk=10**10, room=room)
    assert found.startswith("n2: 10.0 GB are free for the run folder, and the checkpoints kept ne")


def test_what_data_workers_make_ahead_fits_into_memory():
    known, when = {"a": SOUND}, {"a": (100.0, 110.1)}
    slot = slot_bytes(shape_of(find_recipe("deit3_h14_in1k_126")[1].data), 1)
    assert slot == 3 * 126 * 126 + 25  # three numbers and a flag with the pixels
    need = 2 * 8 * (4 * 11 + 1) * 256 * slot  # training and evaluation, ranks, micro-batches
    for memory in (need, need - 1):
        small = {"a": replace(known["a"], memory=memory)}
        found = list(problems_of(small, {"a": 8}, when, 0, slot, 2048))
        said = f"a: {memory / 1e9:.1f} GB of memory are free, and 88 data workers may fill 8.8 GB"
        assert [one.startswith(said) for one in found] == [True] * (memory < need)


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (Done(None, "", "killed"), "no answer in time"),
        (Done(255, "", "no route"), "no route; mend it until `ssh HOST true` works"),
        (Done(127, "", "no python"), "no python; have the same environment"),
        (Done(1, "", "x\nModuleNotFoundError: No module named 'bigvit'"), "same environment"),
        (Done(2, "", "python: can't open file '/x/bigvit/doctor': [Errno 2]"), "at the same path"),
        (Done(1, "", "a\nTypeError: b"), "exit code 1: TypeError: b"),
        (Done(0, "", ""), "exit code 0: it said nothing"),
    ],
)
def test_an_answer_that_is_none_is_told_apart(done, said):
    with pytest.raises(ValueError, match=said):
        _answer(done)


def test_an_answer_is_found_among_what_else_was_printed():
    text = json.dumps(asdict(SOUND))
    assert Facts(**_answer(Done(0, f"welcome\n{text}\nbye\n", ""))).versions == SOUND.versions


def test_a_port_that_is_in_use_and_one_that_nobody_opened_are_told():
    import socket

    with socket.socket() as used, socket.socket() as closed:
        used.bind(("127.0.0.1", 0))
        used.listen()
        closed.bind(("127.0.0.1", 0))
        port, shut = used.getsockname()[1], closed.getsockname()[1]
        doors = {"a": [("127.0.0.1", port)], "b": [("127.0.0.1", shut)]}
        met = meet("a", Meeting(doors, 0.5))
    assert met.occupied == [port]
    assert met.failed == [("b", "127.0.0.1", shut, "Connection refused")]


def test_links_are_read_from_what_nvidia_smi_draws(monkeypatch):
    rows = "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\n"
    rows += "GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0\nGPU1\tNV18\t X \tSYS\tSYS\t0-47\t0\n"
    rows += (
        "GPU2\tSYS\tSYS\t X \tPXB\t48-95\t1\nNIC0\tPIX\tSYS\tPXB\t X \n\nLegend:\n\n  X = Self\n"
    )
    monkeypatch.setattr(facts, "_ask", lambda *command: rows.strip())
    assert facts._links() == ["NV18", "SYS"]


def test_bad_input_is_refused(tmp_path, capsys):
    assert main(["doctor", "--hostfile", str(tmp_path / "absent")]) == 2
    assert "absent cannot be read" in capsys.readouterr().err
    assert main(["doctor", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
