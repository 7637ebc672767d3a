"""`bigvit rehearse`, and the real run beside its certificate."""

import json
from pathlib import Path

import pytest

from bigvit.cli import main
from bigvit.recipe.parse import parse
from bigvit.training.run_folder import RunFolder

DIGITS = ("rehearse", "digits_vit", "--ranks")
WAYS = (
    *("deepspeed zero0", "deepspeed zero1", "deepspeed zero2", "deepspeed zero3"),
    *("fsdp2 full", "fsdp2 node", "fairscale oss", "fairscale sdp"),
)


def certificate(tmp_path: Path, way: str, ranks: int, *more: str) -> dict:
    engine, sharding = way.split()
    out = tmp_path / "certificate.json"
    words = (*DIGITS, str(ranks), "--engine", engine, "--sharding", sharding, *more)
    assert main([*words, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["failed"] == [] and len(found["not_proved"]) >= 6
    return found


def test_a_rank_of_eight_is_rehearsed_and_compared_with_its_run(tmp_path, capsys):
    more = ("--rank", "7", "--per-node", "4")
    found = certificate(tmp_path, "fsdp2 node", 8, *more)
    assert len(found["proved"]) == 8
    assert found["counted"]["sent"] and found["counted"]["sent"] == found["predicted"]["sent"]
    assert found["counted"]["ranks"] == [0, 7]
    kept = sum(found["predicted"][kind] for kind in ("weights", "moments", "average", "buffers"))
    assert found["counted"]["between"] == pytest.approx(kept, rel=0.01)
    assert found["memory"] < 3e9 and (found["ranks"], found["rank"]) == (8, 7)
    command = parse(["digits_vit", "--engine", "fsdp2", "--sharding", "node"])
    folder = RunFolder(tmp_path / "run", command, 8)
    folder.accept()
    folder.log({"kind": "update", "batch": 1, "update": 1})
    seconds, planned = {"seconds": 1.0}, found["planned_memory"]
    line = {"kind": "planned", "batch": 10, "update": 10, "waiting": 0.0}
    line["measured"] = seconds | {"memory": planned}
    folder.log(line | {"planned": seconds | {"memory": planned}})
    folder.close()
    path = tmp_path / "certificate.json"
    words = ["doctor", "--certificate", str(path), "--run-dir", str(tmp_path / "run")]
    assert main(words) == 0
    doctored = {
        **found,
        "ranks": 16,
        "versions": found["versions"] | {"torch": "1.0"},
        "planned_memory": planned // 2,
        "recipe": found["recipe"] | {"seed": 77},
    }
    path.write_text(json.dumps(doctored))
    capsys.readouterr()
    assert main(words) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in said] == [
        ["PROBLEM", "the", "recipe"],
        ["PROBLEM", "ranks:", "8,"],
        ["PROBLEM", "version", "of"],
        ["PROBLEM", "memory:", f"{planned / 1e9:.1f}"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("more", [(), ("--micro-batch", "8", "--ema", "0.9", "--rank", "2")])
def test_every_way_is_rehearsed(way, more, tmp_path):
    found = certificate(tmp_path, way, 4, *more, *(("--per-node", "2") if "node" in way else ()))
    updated = any("an update" in row["what"] for row in found["proved"])
    assert updated or way == "fairscale oss"
    if updated:
        assert found["counted"]["sent"] == found["predicted"]["sent"]


NEAR = {"stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 1000}
FOLLOWED = ("coarse_digits_grafit", "--micro-batch", "10"), ("dino_fashion_vit", "--ema", "0.9")


def followed(words: tuple[str, ...], way: str, tmp_path: Path) -> dict:
    """A certificate of a recipe that a network follows, of the second of three or four ranks."""
    engine, sharding = way.split()
    ranks = "3" if words[0].startswith("coarse") else "4"
    if engine == "fairscale" and "bf16" in words:
        words = (*words, "--gradient-precision", "bf16")
    given = ("rehearse", *words, "--ranks", ranks, "--rank", "1", "--engine", engine)
    out = tmp_path / "certificate.json"
    assert main([*given, "--sharding", sharding, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["failed"] == []
    return found


def test_a_follower_a_memory_and_views_are_rehearsed(tmp_path):
    found = followed(FOLLOWED[0], "fsdp2 full", tmp_path)
    said, counted = found["predicted"], found["counted"]
    assert counted["sent"] == said["sent"] and len(found["proved"]) == 8
    stay = ("weights", "moments", "average", "follower", "remembered", "buffers")
    stepping = sum(said[kind] for kind in (*stay, "noted", "stepping"))
    assert counted["stepping"] == pytest.approx(stepping, rel=0.002)
    assert counted["slices"]["kept"] == 4 * 64 * (1497 // 3)
    assert said["noted"] == 60 * (4 * 64 + 8)


DENSE = {
    "boxes": ("scenes_mask_rcnn", "--batch-size", "4"),
    "pixels": ("scenes_swin_64", "--batch-size", "8", "--objectives.0.norm", "batch"),
}
"""With shifted windows, and norms that see all ranks' images."""
STAY = "weights", "masters", "moments", "buffers", "standing"


def dense(kind: str, way: str, more: tuple[str, ...], tmp_path: Path) -> dict:
    engine, sharding = way.split()
    given = ("rehearse", *DENSE[kind], *more, "--engine", engine, "--sharding", sharding)
    out = tmp_path / "certificate.json"
    assert main([*given, "--ranks", "2", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["failed"] == [] and found["counted"]["sent"] == found["predicted"]["sent"]
    kept = sum(found["predicted"][kind] for kind in STAY)
    assert found["counted"]["between"] == pytest.approx(kept, rel=0.01)
    return found


@pytest.mark.parametrize("kind", [pytest.param("boxes", marks=pytest.mark.slow), "pixels"])
def test_trunk_and_head_are_rehearsed(kind, tmp_path):
    more = ("--precision", "bf16", *(("--micro-batch", "2") if kind == "pixels" else ()))
    found = dense(kind, "fsdp2 full", more, tmp_path)
    assert len(found["proved"]) == 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize("way", ["deepspeed zero0", "deepspeed zero2", "deepspeed zero3"])
def test_trunk_and_head_are_rehearsed_by_deepspeed(kind, way, tmp_path):
    dense(kind, way, ("--precision", "bf16"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("words", FOLLOWED)
@pytest.mark.parametrize("way", [*(way for way in WAYS if "node" not in way), "deepspeed near"])
@pytest.mark.parametrize("more", [(), ("--precision", "bf16")])
def test_every_way_of_what_is_followed_is_rehearsed(words, way, more, tmp_path):
    if way == "deepspeed near":
        (tmp_path / "near.json").write_text(json.dumps({"zero_optimization": {"stage": 3, **NEAR}}))
        way = f"deepspeed {tmp_path / 'near.json'}"
    found = followed((*words, *more), way, tmp_path)
    assert found["counted"]["sent"] == found["predicted"]["sent"] or way == "fairscale oss"


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "more"), [(64, ()), (512, ("--batch-size", "4096"))])
def test_a_billion_parameters_are_rehearsed_in_five_minutes_and_little_memory(
    ranks, more, tmp_path
):
    words = ["rehearse", "deit3_h26x2_14_in1k_126", "--ranks", str(ranks), *more]
    out = tmp_path / "certificate.json"
    assert main([*words, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["memory"] < 8e9 and found["seconds"]["all"] < 300


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("no_such", "--ranks", "4"), "no_such"),
        (("digits_vit", "--ranks", "5"), "batch_size 64 does not divide over 5 ranks"),
        (("digits_vit", "--ranks", "12", "--per-node", "8"), "not a multiple of the 8 ranks"),
        (("digits_vit", "--ranks", "4", "--rank", "4"), "--rank 4 is not one of 4 ranks"),
        (("digits_vit", "--ranks", "4", "--engine", "single"), "--engine single is one process"),
        (("digits_vit", "--ranks", "4", "--out", "no/such/file"), "there is no folder no/such"),
    ],
)
def test_what_cannot_be_rehearsed_is_one_line(words, said, capsys):
    assert main(["rehearse", *words]) == 2
    out, error = capsys.readouterr()
    assert out == "" and said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"), [("{}", "it is none"), ("", "it is none"), ('{"format": 2}', "it is none")]
)
def test_a_file_that_is_no_certificate_is_refused(text, said, tmp_path, capsys):
    path = tmp_path / "certificate.json"
    path.write_text(text)
    words = ["doctor", "--certificate", str(path)]
    assert main([*words, "--run-dir", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert main(words) == 2
    assert "--run-dir" in capsys.readouterr().err
