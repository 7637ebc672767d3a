"""The files that a user or a run leaves, each of their keys spoiled (`test_generated_input.py`)."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import generated
from generated import BROKEN_JSON, Case, Missing, changed, outside
from refusals import make_there, refused, write_text
from small import TINY

from bigvit.checkpoint import manifest as manifests
from bigvit.engines.deepspeed.config import ALLOWED
from bigvit.recipe.bounds import Bound
from bigvit.recipe.store import ADDED


def test_shardings(folder, capfd) -> None:
    path = folder / "own.json"
    words = ["train", "digits_vit", "--run-dir", str(folder / "new"), "--sharding", str(path)]

    def case(name: str, text: str, says: str) -> Case:
        return Case(f"a sharding with {name}", words, says, lambda: write_text(path, text))

    def cases() -> Iterator[Case]:
        for where, kind in _sharding_keys(ALLOWED):
            for what, value in _not_of(kind):
                stage = {"zero_optimization": {"stage": 3}} if len(where) > 1 else {}
                text = json.dumps(_merged(stage, where, value))
                yield case(f"{'.'.join(where)} {what}", text, where[-1])
        filled = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping")
        for key in (*filled, "gradient_accumulation_steps", "bf16", "fp16", "data_types"):
            for value in (10**30, "x", {"enabled": 3}, True):
                yield case(f"{key} {value}", json.dumps({key: value}), key)
        for key in ("zero_quantized_weights", "zero_quantized_gradients"):
            for value in (True, 1, "x"):
                text = json.dumps({"zero_optimization": {"stage": 3, key: value}})
                yield case(f"{key} {value}", text, key)
        for name, text in BROKEN_JSON.items():
            yield case(name, text.replace("WORD", "steps_per_print"), "own.json")
        odd = {"zero_optimization": {"stage": 2, "allgather_bucket_size": 1001}}
        yield case("an odd bucket", json.dumps(odd), "allgather_bucket_size")
        for name, make in (("a folder", Path.mkdir), ("a FIFO", os.mkfifo)):
            yield Case(
                f"a sharding that is {name}", words, "own.json", lambda m=make: make_there(path, m)
            )
        device = [*words[:-1], "/dev/zero"]
        yield Case("a sharding that has no end", device, "/dev/zero")

    assert refused(cases(), folder, capfd) > 250


def _sharding_keys(table: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Every key of a sharding by its path, with the kind of its value."""
    for key, kind in table.items():
        yield (*above, key), kind
        if isinstance(kind, dict):
            yield from _sharding_keys(kind, (*above, key))


def _not_of(kind: Any) -> Iterator[tuple[str, Any]]:
    """Values that are not of a kind that sharding.py knows."""
    values: dict[str, Any] = {"a text": "auto", "an object": {"x": 1}, "false": False}
    values |= {"one": 1}
    fine = {bool: ["false"], str: ["a text"], list: []}.get(
        kind if isinstance(kind, type) else None, []
    )
    if isinstance(kind, Bound):
        values |= {
            what: json.loads(text)
            for what, text in outside(kind).items()
            if what in ("below", "beyond", "huge", "a fraction")
        }
        fine = ["one"]
    yield from ((what, value) for what, value in values.items() if what not in fine)


def _merged(value: dict[str, Any], where: tuple[str, ...], new: Any) -> dict[str, Any]:
    """JSON with a value at a path."""
    first, *rest = where
    return value | {first: _merged(value.get(first, {}), tuple(rest), new) if rest else new}


def test_manifests(folder, run, capfd) -> None:
    """Every key of a real one, at every level, with the digest made right again."""
    checkpoint = run / "checkpoints" / "step_00000004"
    path = checkpoint / "manifest.json"
    whole = json.loads(path.read_text())
    words = ["bigvit", "evaluate", str(checkpoint), "--workers", "0"]

    def cases() -> Iterator[Case]:
        for place, what, value in generated.json_changes(whole["body"]):
            where = [*place]
            name = ".".join(map(str, where))
            if where[0] in ("data", "recipe") and len(where) > 1:
                continue  # compared with the recipe and the data where a run goes on
            if _is_older(name, what, value) or _is_another_name(name, what):
                continue
            body = changed(whole["body"], where, value)
            if name == "scalars.strange key":
                continue  # an engine's own; a later one may keep more
            says = [str(key) for key in where if type(key) is str][-1]
            if "exp_avg" in name and what == "missing":
                continue  # not read here
            if name in ("teacher", "label_maps") and what == "a text":
                continue  # a digest is one
            if where[0] == "tensors" and (what == "missing" or name.endswith("shape.0")):
                says = ""  # what does not fit then is another thing
            yield Case(f"a manifest, {name} {what}", words, says, lambda body=body: write(body))
        for shape in ([10**12], [10**12, 10**12], [2] * 10_000, [-1, -1], [1.5], ["x"]):
            body = changed(whole["body"], ("tensors", 0, "shape"), shape)
            size = abs(math.prod(n for n in shape if isinstance(n, int)))
            for cut in (whole["body"]["tensors"][0]["cuts"][0], [0, 1, size], [0, size, 1]):
                body = changed(body, ("tensors", 0, "cuts"), [cut])
                name = f"a manifest, a shape of {str(shape)[:40]} cut as {str(cut)[:20]}"
                yield Case(name, words, "manifest", lambda body=body: write(body))
        for row in (0, -1):
            tensors = [*whole["body"]["tensors"], whole["body"]["tensors"][row]]
            body = whole["body"] | {"tensors": tensors}
            yield Case(f"a manifest, row {row} twice", words, "name", lambda body=body: write(body))
        twice = {**whole["body"], "files": whole["body"]["files"] * 2}
        yield Case("a manifest, a file twice", words, "files", lambda: write(twice))
        for where, what, value in generated.json_changes(whole):
            if where[0] != "body" or len(where) == 1:
                text = json.dumps(changed(whole, where, value))
                if what != "unknown":
                    name = f"a manifest, {where[0]} {what}"
                    yield Case(
                        name, words, "manifest.json", lambda text=text: write_text(path, text)
                    )
        for name, text in BROKEN_JSON.items():
            text = text.replace("WORD", "body")
            yield Case(
                f"a manifest: {name}", words, "json", lambda text=text: write_text(path, text)
            )

    def write(body: Any) -> None:
        write_text(path, json.dumps({**whole, "digest": manifests._digest_of(body), "body": body}))

    assert refused(cases(), folder, capfd) > 150


def _is_older(name: str, what: str, value: Any) -> bool:
    """What a manifest of before may lack, and what may be null."""
    later = ["batch", *(f.name for f in fields(manifests.Manifest) if f.default is not MISSING)]
    return (
        what == "missing"
        and name in later
        or name == "data"
        and (value is None or what == "an object")
    )


def _is_another_name(name: str, what: str) -> bool:
    """Another digest or name is not wrong by itself: the files' content tells."""
    return (
        name == "files.0.digest"
        and what in ("a way out", "long", "empty", "NUL")
        or (name == "tensors.0.name" and what in ("a text", "a way out"))
    )


def test_a_runs_own_files(folder, run, capfd) -> None:
    kept = {path: path.read_bytes() for path in run.glob("*.json")}
    status = json.loads((run / "status.json").read_text())
    classes = json.loads((run / "classes.json").read_text())
    described = json.loads((run / "recipe.json").read_text())
    resume = ["train", "digits_vit", *TINY, "--run-dir", str(run), "--resume", "auto"]

    def case(name: str, file: str, words: list[str], text: str) -> Case:
        def prepare() -> None:
            for path, content in kept.items():
                path.write_bytes(content)
            write_text(run / file, text)

        return Case(f"{file}: {name}", words, file, prepare)

    def cases() -> Iterator[Case]:
        files = {"status.json": ["bigvit", "status", str(run)], "recipe.json": resume}
        files["classes.json"] = ["bigvit", "export", str(run)]
        for file, words in files.items():
            for name, text in BROKEN_JSON.items():
                if file != "classes.json" or name != "a list of names":
                    yield case(name, file, words, text.replace("WORD", "recipe"))
        for key, value in status.items():
            for what, other in generated.broken(value):
                number = type(value) is int and type(other) is int
                fine = number or type(value) is str and type(other) is str
                if not fine and not (
                    other is None and key in ("exit_code", "time", "host", "process")
                ):
                    yield case(
                        f"{key} {what}",
                        "status.json",
                        files["status.json"],
                        json.dumps({**status, key: other}),
                    )
        for what, other in {
            "an object": {"0": "a"},
            "numbers": list(range(len(classes))),
            "one too many": [*classes, "more"],
            "one twice": [*classes[:-1], classes[0]],
            "a name nested": [*classes[:-1], ["x"]],
            "null": [*classes[:-1], None],
        }.items():
            yield case(what, "classes.json", files["classes.json"], json.dumps(other))
        for where, what, value in generated.json_changes(described["recipe"]):
            filled = value is Missing and any(where[-1] in fields for fields in ADDED.values())
            if what in ("missing", "unknown", "huge", "a list") and not filled:
                text = json.dumps(
                    {**described, "recipe": changed(described["recipe"], where, value)}
                )
                yield case(
                    f"{'.'.join(map(str, where))} {what}", "recipe.json", resume, text
                )._replace(says=str(where[-1]))
        for what, other in generated.broken(described["recipe"]):
            yield case(
                what, "recipe.json", resume, json.dumps({**described, "recipe": other})
            )._replace(says="recipe")

    assert refused(cases(), folder, capfd) > 100


def test_hostfiles(folder, capfd) -> None:
    path = folder / "hosts"
    words = ["bigvit", "hosts", "--hostfile", str(path), "digits_vit"]
    texts = {
        f"{n} slots": f"a slots={n}\n" for n in ("0", "-1", "x", "1e3", 10**30, "9" * 5000, "٣")
    }
    texts |= {
        "no slots": "a\n",
        "nothing": "",
        "comments": "# a\n",
        "twice": "a slots=1\na slots=1\n",
    }
    texts |= {"no UTF-8": "\udcff slots=1\n", "more": "a slots=1x\n"}
    cases = [
        Case(
            f"a hostfile with {name}", words, "--hostfile", lambda text=text: write_text(path, text)
        )
        for name, text in texts.items()
    ]
    for name, make in (("a folder", Path.mkdir), ("nothing at all", lambda path: None)):
        cases.append(
            Case(f"a hostfile: {name}", words, "--hostfile", lambda m=make: make_there(path, m))
        )
    refused(cases, folder, capfd)
