"""Reports of runs beside the authors' logs, and of several jobs."""

import json
from pathlib import Path

import pytest
from test_report import made, text_of

from bigvit.checkpoint import jobs
from bigvit.recipe.find import find_recipe
from bigvit.recipe.store import to_json
from bigvit.report.make import read_runs
from bigvit.report.published import compared, published_for


def published_run(folder: Path, name: str, top1: dict[int, float]) -> Path:
    """A run of a published recipe, as far as its files tell it."""
    _, recipe = find_recipe(name)
    per = recipe.updates_per_epoch
    folder.mkdir(parents=True)
    described = {"name": name, "recipe": to_json(recipe), "run": {}, "world": 8}
    (folder / "recipe.json").write_text(json.dumps(described))
    told = [
        {
            "kind": "evaluation",
            "batch": e * per,
            "update": e * per,
            "epoch": float(e),
            "top1": value,
        }
        for e, value in top1.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in told))
    return folder


def test_the_log_of_vit_s_is_the_authors() -> None:
    """As the design's notes on recipes hold it, read by another hand."""
    _, recipe = find_recipe("deit3_s16_in1k_224_800e_repo")
    log = published_for(to_json(recipe))
    assert log is not None and log.differs == []
    read = {5: 2.0, 20: 24.8, 45: 51.8, 145: 66.1, 400: 74.4, 800: 81.4}
    assert {epoch: round(log.at(epoch), 1) for epoch in read} == read
    assert log.at(7.5) == pytest.approx((2.008 + 9.258) / 2)


def test_a_run_is_seen_to_be_on_course_from_epoch_5_on(tmp_path: Path) -> None:
    name = "deit3_s16_in1k_224_800e_repo"
    fine = published_run(tmp_path / "fine", name, {1: 0.2, 5: 2.3, 10: 9.0, 20: 25.0})
    late = published_run(tmp_path / "late", name, {5: 0.4, 20: 20.0})
    said = text_of(made(fine, out=tmp_path / "a.html"))
    assert "fine is on course at epoch 20: top-1 25.00 %, the authors' log 24.75 %" in said
    assert "not quite that recipe" not in said and " 1 0.20" not in said
    assert "late is behind at epoch 20" in text_of(made(late, out=tmp_path / "b.html"))
    early = published_run(tmp_path / "early", name, {1: 0.2})
    assert "no evaluation after epoch 5 yet" in text_of(made(early, out=tmp_path / "c.html"))


def test_another_recipe_of_that_model_is_named_as_such_and_none_elsewhere() -> None:
    log = published_for(to_json(find_recipe("deit3_s16_in1k_224_800e")[1]))
    assert log is not None and log.recipe == "deit3_s16_in1k_224_800e_repo"
    assert "optim.lr: 0.004 -> 0.003" in log.differs
    for other in ("deit3_s16_in1k_224", "deit_s16_in1k_224", "digits_vit"):
        assert published_for(to_json(find_recipe(other)[1])) is None
    assert [each.said for each in compared(log, [4.0, 800.0], [90.0, 90.0])] == ["ahead"]


def test_jobs_are_told_apart(tmp_path: Path) -> None:
    """Killed, ended by two ranks at once, and over before its start."""
    times = [f"2026-01-01T00:{minute:02}:00+00:00" for minute in range(9)]
    for kind, said in (
        ("start", {"time": times[0], "begins": None}),
        ("start", {"time": times[1], "begins": "x/checkpoints/step_00000040", "world": 2}),
        ("end", {"time": times[2], "reason": "rank 1"}),
        ("end", {"time": times[2], "reason": "rank 0"}),
        ("end", {"time": times[5], "reason": "no port"}),
    ):
        jobs.add(tmp_path, kind, said)
    with (tmp_path / jobs.NAME).open("a") as file:
        file.write("[1]\n{}\n{half")
    torn = jobs.read_jobs(tmp_path)
    jobs.add(tmp_path, "start", {"time": times[6]})
    found = jobs.read_jobs(tmp_path)
    assert found[: len(torn)] == torn and found[len(torn) :] == [
        jobs.Job({"kind": "start", "time": times[6]}, {})
    ]
    found = torn
    lines = (tmp_path / jobs.NAME).read_text().splitlines(keepends=True)
    (tmp_path / jobs.NAME).write_text("".join(lines[:-1]))
    ends = [job.end.get("reason") for job in found]
    assert ends == [None, "rank 0", "no port"] and found[2].start == {}
    (tmp_path / "status.json").write_text(json.dumps({"state": "error", "update": 40}))
    (told,) = read_runs([tmp_path])
    assert told.batch == 40 and list(told.restarts()) == [
        (40.0, "went on from batch 40, after it was killed")
    ]
