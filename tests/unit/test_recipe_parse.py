"""The command line of a training: what it sets, and what it refuses by name."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from each import each_of

from bigvit.recipe import Recipe, Run, StochasticDepth
from bigvit.recipe.check import check_recipe, leaves
from bigvit.recipe.find import all_recipes, find_recipe
from bigvit.recipe.parse import parse
from bigvit.recipes.deit3 import deit3_h14_in1k_126
from bigvit.recipes.digits import digits_vit

OWN = """
from dataclasses import replace
from bigvit.recipes import digits

mine = replace(digits.digits_vit, seed=7)
"""


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a refused command line says, on one line."""
    try:
        parse(args)
    except ValueError as error:
        return str(error)
    except SystemExit as done:
        assert done.code == 2
        return " ".join(capsys.readouterr().err.replace("│", " ").split())
    raise AssertionError(f"{args} was accepted")


@pytest.mark.parametrize(
    ("args", "path", "value"),
    [
        ("--optim.lr 1e-3", "optim.lr", 1e-3),
        ("--optim.lr=1e-3", "optim.lr", 1e-3),
        ("--optim.betas 0.8 0.99", "optim.betas", (0.8, 0.99)),
        ("--model.embed-dim 32", "model.embed_dim", 32),
        ("--model.drop-path.rate 0.2", "model.drop_path.rate", 0.2),
        ("--data.mean 0.5", "data.mean", (0.5,)),
        ("--data.repeats 2", "data.repeats", 2),
        ("--objectives.0.smoothing 0", "objectives.0.smoothing", 0.0),
        ("--schedule.epochs 3", "schedule.epochs", 3),
        ("--clip-norm None", "clip_norm", None),
        ("--clip-norm 2", "clip_norm", 2.0),
        ("--batch-size 32", "batch_size", 32),
        ("--precision bf16", "precision", "bf16"),
        ("--seed 5", "seed", 5),
    ],
)
def test_a_recipe_override_changes_its_field_and_no_other(
    args: str, path: str, value: object
) -> None:
    command = parse(["digits_vit", *args.split()])
    wanted = {**dict(leaves(digits_vit)), path: value}
    assert dict(leaves(command.recipe)) == wanted
    assert type(dict(leaves(command.recipe))[path]) is type(value)
    assert command.run == Run()
    assert command.overrides == tuple(args.split())


@pytest.mark.parametrize(
    ("args", "changed"),
    [
        ("--run-dir a/b", {"run_dir": Path("a/b")}),
        ("--data-root a", {"data_root": Path("a")}),
        ("--resume auto", {"resume": "auto"}),
        ("--engine single", {"engine": "single"}),
        ("--sharding zero3", {"sharding": "zero3"}),
        ("--micro-batch 4", {"micro_batch": 4}),
        ("--checkpoint-activations 0.5", {"checkpoint_activations": 0.5}),
        ("--compile", {"compile": True}),
        ("--workers 0", {"workers": 0}),
        ("--log-every 2", {"log_every": 2}),
        ("--evaluate-every 3", {"evaluate_every": 3}),
        ("--checkpoint-every 4", {"checkpoint_every": 4}),
        ("--keep 5", {"keep": 5}),
        ("--stop-after 6", {"stop_after": 6}),
    ],
)
def test_a_run_option_changes_its_field_and_no_other(args: str, changed: dict[str, Any]) -> None:
    command = parse(["digits_vit", *args.split()])
    assert command.run == replace(Run(), **changed)
    assert command.recipe == digits_vit


def test_no_overrides_give_the_recipe_itself() -> None:
    command = parse(["digits_vit"])
    assert (command.name, command.recipe, command.run) == ("digits_vit", digits_vit, Run())


def test_the_launchers_local_rank_is_dropped_wherever_it_stands() -> None:
    plain = parse(["digits_vit", "--seed", "3"])
    assert parse(["--local_rank=3", "digits_vit", "--seed", "3"]) == plain
    assert parse(["digits_vit", "--seed", "3", "--local_rank=0"]) == plain


def test_an_unknown_recipe_is_refused_with_the_nearest_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refusal(capsys, "digits_vti")
    assert "'digits_vti'" in said and "the nearest are digits_vit" in said
    assert "bigvit list" in refusal(capsys, "zzzz")


def test_a_command_line_without_a_recipe_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage" in refusal(capsys, "--seed", "3")
    with pytest.raises(SystemExit) as ended:
        parse([])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("--optim.lrr 1", "Unrecognized options: --optim.lrr, 1"),
        ("--optim.lrr 1", "Perhaps you meant: --optim.lr FLOAT"),
        ("--batch-sizes 3", "Perhaps you meant: --batch-size INT"),
        ("--shardin zero1", "Perhaps you meant: --sharding {None}|STR"),
        ("--optim.lr x", "--optim.lr: could not convert string to float: 'x'"),
        ("--optim.betas 0.9", "'--optim.betas'. Expected 2 values"),
        ("--batch-size 1.5", "--batch-size"),
        ("--precision fp8", "'--precision'. Expected one of ('fp32', 'bf16', 'fp16')"),
        ("--engine x", "'--engine'"),
        ("--micro-batch x", "--micro-batch"),
        ("more", "more"),
    ],
)
def test_an_unknown_or_ill_typed_option_is_refused_by_name(
    args: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "digits_vit", *args.split())
    assert named in said


@pytest.mark.parametrize(
    ("name", "args", "path"),
    [
        ("digits_vit", "--model.patch-size 3", "model.patch_size"),
        ("digits_vit", "--model.num-heads 5", "model.num_heads"),
        ("digits_vit", "--model.num-classes 9", "model.num_classes"),
        ("digits_vit", "--model.num-classes 11", "--model.num-classes 10"),
        ("digits_vit", "--model.in-chans 3", "model.in_chans"),
        ("digits_vit", "--model.mlp-ratio 0.001", "model.mlp_ratio"),
        ("digits_vit", "--model.drop-path.rate 0.95", "model.drop_path.rate"),
        ("digits_vit", "--data.image-size 16", "data.image_size"),
        ("digits_vit", "--data.mean 0.3 0.3", "data.mean"),
        ("digits_vit", "--schedule.warmup-epochs 21", "schedule.warmup_epochs"),
        ("digits_vit", "--batch-size 1498", "batch_size"),
        ("deit3_h14_in1k_126", "--data.classes 7", "--model.num-classes 7"),
        ("deit3_h14_in1k_126", "--objectives.0.smoothing 0.1", "objectives.0.smoothing"),
        ("deit3_h14_in1k_126", "--data.crop.scale 0.5 0.2", "data.crop.scale"),
        ("deit3_h14_in1k_126", "--batch-size 16", "data.repeats"),
        (
            "drloc_swin_t_cifar100",
            "--objectives.1.unit cells --objectives.1.offsets classes",
            "objectives.1.unit",
        ),
        ("swin_t_cifar100", "--model.num-heads 3 6 12", "model.num_heads"),
        ("swin_t_cifar100", "--model.num-heads 3 6 12 25", "model.embed_dim"),
        ("swin_t_cifar100", "--model.patch-size 3", "model.patch_size"),
        ("cvt_13_cifar100", "--model.embed-dims 64 192", "model.embed_dims"),
        ("t2t_vit_14_cifar100", "--model.num-heads 5", "model.embed_dim"),
        ("resnet50_infograph_300e", "--trainable attention", "--trainable all, or head"),
        ("regnety_16gf_in1k_224", "--trainable head", "--trainable all"),
        ("digits_vit", "--trainable later_stages", "ViT has no stages"),
        ("regnety_16gf_in1k_224", "--trainable later_stages", "--trainable all"),
        ("resnet50_infograph_300e", "--model.frozen-statistics", "False from scratch"),
        ("grafit_r50_in1k_224", "--trainable later_stages", "goes by each batch"),
        ("dino_vit_s16_in1k_224_100", "--trainable head", "no objective"),
        ("deit3_h14_in1k_126", "--gradient-precision fp16", "it must be fp32, or bf16"),
        ("digits_vit", "--gradient-precision bf16", "it must be fp32"),
    ],
)
def test_values_that_contradict_each_other_are_refused_by_name(
    name: str, args: str, path: str
) -> None:
    with pytest.raises(ValueError) as refused:
        parse([name, *args.split()])
    assert path in str(refused.value)


def test_the_batch_offered_for_mixing_with_repeats_is_the_smallest_that_works() -> None:
    with pytest.raises(ValueError, match="choose at least 24"):
        check_recipe(replace(deit3_h14_in1k_126, batch_size=23))
    check_recipe(replace(deit3_h14_in1k_126, batch_size=24))


@pytest.mark.parametrize("rate", [0.8, 0.9, 0.95, 0.99])
def test_the_group_offered_for_a_high_drop_rate_works(rate: float) -> None:
    def with_group(group: int) -> Recipe:
        drop = StochasticDepth(rate=rate, group=group)
        return replace(digits_vit, model=replace(digits_vit.model, drop_path=drop))

    with pytest.raises(ValueError, match="a group of at least") as refused:
        check_recipe(with_group(4))
    check_recipe(with_group(int(str(refused.value).rsplit(" ", 1)[1])))


@each_of("name", all_recipes())
def test_every_recipe_that_comes_with_bigvit_passes_the_checks(name: str) -> None:
    check_recipe(all_recipes()[name])


def test_an_image_need_not_be_square() -> None:
    recipe = parse(["photos_cait_64_ft96", "--data.image-size", "64", "96"]).recipe
    assert recipe.data.image_size == (64, 96)
    assert parse(["photos_cait_64_ft64x96"]).recipe == replace(recipe, starts_from="photos_cait_64")
    assert parse(["photos_cait_64_ft64x96", "--data.image-size", "96"]).recipe.data.image_size == 96
    for size, said in (("60 96", "model.patch_size"), ("0 96", "1 to")):
        with pytest.raises(ValueError, match=f"data.image_size: .*{said}"):
            parse(["photos_cait_64_ft96", "--data.image-size", *size.split()])


def shown_fields(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What --help says of each option, on one line."""
    monkeypatch.setenv("COLUMNS", "100")  # wider, tyro sets two columns
    with pytest.raises(SystemExit) as ended:
        parse([name, "--help"])
    assert not ended.value.code
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    text = " ".join(" ".join(lines).split())
    text = re.sub(r", --(\S+\.)?no-\S+", "", text)  # the second name of a switch
    shown = {option.split(" ")[0]: option for option in text.split(" --")[1:]}
    left_out = re.search(r"Left out here: (.*?);", text)
    for part in left_out[1].split(", ") if left_out else ():
        shown[part.split(" ")[0]] = part
    return shown


@pytest.mark.parametrize(
    "name", ["digits_vit", "deit3_h14_in1k_126", "drloc_swin_t_cifar100", "photos_cait_64_ft64x96"]
)
def test_help_lists_every_field_with_its_value(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = shown_fields(name, capsys, monkeypatch)
    wanted = [*leaves(all_recipes()[name]), *leaves(Run())]
    missing = {path for path, _ in wanted} - {option.replace("-", "_") for option in shown}
    assert not missing
    for path, value in wanted:
        said = shown[path.replace("_", "-")].replace("'", "").replace("()", "")
        default = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert f"(default: {default})" in said


def test_help_says_that_parts_are_left_out_and_not_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(["digits_vit", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    left_out = "Left out here: data.augment (default: None), teacher (default: None); a recipe"
    assert left_out in shown
    assert "--starts-from" in shown
    with pytest.raises(SystemExit):
        parse(["drloc_swin_t_cifar100", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "data.views (default: ()), objectives.1.ramp (default: None), teacher (default: None)"
        in shown
    )


def test_help_without_a_recipe_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    assert "bigvit list" in capsys.readouterr().out


def test_names_of_run_and_recipe_never_collide() -> None:
    run, recipe = ({field.name for field in fields(kind)} for kind in (Run, Recipe))
    assert run and recipe and run & recipe == {"teacher"}  # --teacher, --teacher.precision


OWN_TEACHER = """
from dataclasses import replace
from bigvit.recipe import SoftDistillation, Teacher
from bigvit.recipes.digits import digits_vit
soft = SoftDistillation(weight=0.5, tau=2.0, mean="images", head="class")
teacher = Teacher(model=digits_vit.model, image_size=8, mean=(0.3,), std=(0.4,), precision="fp32")
mine = replace(digits_vit, objectives=(*digits_vit.objectives, soft), teacher=teacher)
"""


def test_a_teachers_weights_and_its_fields_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN_TEACHER)
    words = ["--teacher", "runs/x", "--teacher.precision", "bf16", "--teacher.model.depth", "2"]
    command = parse([f"{path}:mine", *words])
    assert command.run.teacher == "runs/x" and command.recipe.teacher is not None
    assert command.recipe.teacher.precision == "bf16"
    assert command.recipe.teacher.model == replace(digits_vit.model, depth=2)


def test_a_users_own_file_is_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    wanted = replace(digits_vit, seed=7)
    command = parse([str(path)])
    assert (command.name, command.recipe) == ("mine", wanted)
    assert parse([f"{path}:mine"]).recipe == wanted
    assert parse([str(path), "--batch-size", "8"]).recipe == replace(wanted, batch_size=8)


IMPORTS = """
from dataclasses import replace
from bigvit.recipes.deit3 import *
from bigvit.recipes.digits import digits_vit
from bigvit.recipes.digits import digits_vit as base
"""


def test_what_a_users_file_imports_is_not_its_own(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(f"{IMPORTS}mine = replace(base, seed=7)\n")
    command = parse([str(path)])
    assert (command.name, command.recipe) == ("mine", replace(digits_vit, seed=7))
    assert parse([f"{path}:base"]).recipe == digits_vit  # unless it is named
    path.write_text("from bigvit.recipes.digits import digits_vit\n")
    assert parse([str(path)]).recipe == digits_vit  # it has no other


def test_a_users_file_with_two_recipes_needs_a_name(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN + "other = replace(mine, seed=8)\n")
    assert parse([f"{path}:other"]).recipe.seed == 8
    with pytest.raises(ValueError, match="2 recipes .*mine, other.* say .*own.py:NAME"):
        parse([str(path)])
    with pytest.raises(ValueError, match="'othe' in .*own.py; the nearest are other"):
        parse([f"{path}:othe"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import nothing_like_this\n", "ModuleNotFoundError"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("x = 1\n", "holds no recipe"),
    ],
)
def test_a_users_file_that_gives_no_recipe_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as refused:
        parse([str(path)])
    assert str(path) in str(refused.value)


def test_a_missing_users_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no recipe file .*absent.py"):
        parse([str(tmp_path / "absent.py")])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('precision="fp32"', 'precision="fp64"', "recipe.precision: 'fp64'"),
        ("batch_size=64", 'batch_size="64"', "recipe.batch_size"),
        ("epochs=20,", "epochs=20.5,", "recipe.schedule.epochs"),
        ("std=(0.376,)", "std=0.376", "recipe.data.std"),
        ("drop_path=StochasticDepth(rate=0.05, group=8)", "drop_path=None", "model.drop_path"),
        (
            "objectives=(CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),)",
            "objectives=3",
            "objectives",
        ),
        ("digits_vit = Recipe(", "import sys\nsys.exit(0)\ndigits_vit = Recipe(", "SystemExit"),
    ],
)
def test_a_users_file_of_wrong_types_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    bundled = Path(__file__).parents[2] / "recipes" / "digits.py"
    text = bundled.read_text()
    assert old in text
    path = tmp_path / "own.py"
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=said):
        find_recipe(f"{path}:digits_vit")
