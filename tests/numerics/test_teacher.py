"""What a teacher is fed of the student's images, and that it is asked and never changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from randomised import randomised
from safetensors.torch import save_file
from torch.nn.functional import interpolate

from bigvit.checkpoint.teacher import TeacherWeights
from bigvit.data.batch import Batch
from bigvit.data.mix import draw
from bigvit.data.prepare import Prepare
from bigvit.engines import teacher as teachers
from bigvit.engines.teacher import Stopwatch, Teaching, TooLarge, check_room
from bigvit.ranks.joining import alone
from bigvit.recipe import (
    AveragePooling,
    Mix,
    Recipe,
    ResNet,
    Run,
    SoftDistillation,
    StochasticDepth,
    Teacher,
    Timm,
    TimmSizes,
)
from bigvit.recipes.photos import photos_vit_64

DATA = replace(
    photos_vit_64.data, image_size=32, mix=Mix(mixup=0.8, cutmix=1.0, switch=0.5, group=4)
)
MODEL = replace(
    photos_vit_64.model, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=DATA.classes
)
SAME = Teacher(model=MODEL, image_size=32, mean=DATA.mean, std=DATA.std, precision="fp32")


def recipe(teacher: Teacher) -> Recipe:
    soft = SoftDistillation(weight=1.0, tau=1.0, mean="images", head="class")
    return replace(photos_vit_64, data=DATA, model=MODEL, objectives=(soft,), teacher=teacher)


def teaching(teacher: Teacher) -> Any:
    made = Teaching(recipe(teacher), alone(), sharded=False)
    randomised(made.model)
    return made


def batch(number: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(number)
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=generator)
    places = torch.arange(8)
    return Batch(
        *(images, places % DATA.classes, places, places, number, 0),
        *(torch.ones(8, dtype=torch.bool), places[:0]),
        mix=draw(DATA, 0, number, (0, 8)),
    )


def fed(teaching: Any, images: torch.Tensor) -> torch.Tensor:
    """What reaches the model."""
    seen: list[torch.Tensor] = []
    hook = teaching.model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    teaching(images)
    hook.remove()
    return seen[0]


def test_images_of_its_size_and_normalisation_are_not_copied() -> None:
    same, images = teaching(SAME), torch.randn(4, 3, 32, 32)
    before = images.clone()
    found = fed(same, images)
    assert found.data_ptr() == images.data_ptr() and found.shape == images.shape
    assert torch.equal(images, before), "the student sees them next"


def test_an_oblong_of_the_same_size_is_not_resized() -> None:
    same = teaching(replace(SAME, image_size=(32, 32)))
    images = torch.randn(4, 3, 32, 32)
    assert fed(same, images).data_ptr() == images.data_ptr()


def test_it_sees_the_mixed_pixels_with_its_own_normalisation() -> None:
    """Of pixels that were mixed first, and normalised by its numbers."""
    other = replace(SAME, mean=(0.5, 0.4, 0.3), std=(0.2, 0.5, 1.0))
    inputs = Prepare(recipe(other))(batch())
    mean, std = (torch.tensor(v).double().view(1, 3, 1, 1) for v in (DATA.mean, DATA.std))
    pixels = inputs.images.double() * std + mean
    mean, std = (torch.tensor(v).double().view(1, 3, 1, 1) for v in (other.mean, other.std))
    found = fed(teaching(other), inputs.images)
    torch.testing.assert_close(found.double(), (pixels - mean) / std, rtol=0, atol=2e-6)


@pytest.mark.parametrize("size", [16, (40, 48)])
def test_it_is_fed_its_own_size(size: Any) -> None:
    other = replace(SAME, image_size=size, mean=(0.5, 0.5, 0.5))
    images = torch.randn(4, 3, 32, 32)
    both = size if isinstance(size, tuple) else (size, size)
    scale = torch.tensor([m - 0.5 for m in DATA.mean]) / torch.tensor(DATA.std)
    expected = interpolate(images, both, mode="bicubic", antialias=True) + scale.view(1, 3, 1, 1)
    torch.testing.assert_close(fed(teaching(other), images), expected, rtol=0, atol=1e-5)


def test_its_answers_are_targets_and_nobody_else_is_told_anything_new() -> None:
    mine = teaching(SAME)
    told = Prepare(recipe(SAME), teacher=mine)(batch())
    untold = Prepare(recipe(SAME))(batch())
    assert torch.equal(told.images, untold.images)
    assert torch.equal(told.targets.dense, untold.targets.dense) and untold.targets.teacher is None
    answers = told.targets.teacher
    assert answers is not None and answers.shape == (8, DATA.classes) and not answers.requires_grad
    with torch.no_grad():
        assert torch.equal(answers, mine.model(told.images).logits)


def test_in_bf16_its_answers_are_float32_and_near() -> None:
    wide, narrow = teaching(SAME), teaching(replace(SAME, precision="bf16"))
    for name, weight in wide.model.state_dict().items():
        narrow.put(name, weight)
    images = torch.randn(4, 3, 32, 32)
    assert {p.dtype for p in narrow.model.parameters()} == {torch.bfloat16}
    found, expected = narrow(images), wide(images)
    assert found.dtype == torch.float32
    apart = float((found - expected).norm() / expected.norm())
    assert 0 < apart < 0.03


def test_statistics_of_batches_are_those_it_was_trained_with() -> None:
    model = ResNet((1, 1), AveragePooling(), None, False, 3, DATA.classes)
    mine = teaching(replace(SAME, model=model))
    before = {name: b.clone() for name, b in mine.model.named_buffers()}
    one = mine(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1)))
    again = mine(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(one, again) and not mine.model.training and before
    assert all(torch.equal(b, before[name]) for name, b in mine.model.named_buffers())


def test_a_model_of_timms_answers_as_timms_does(tmp_path: Path) -> None:
    """With its own file: as the thesis' teacher is one, a RegNet, in small."""
    theirs = timm.create_model("regnety_002", num_classes=DATA.classes).eval()
    randomised(theirs)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    drop = StochasticDepth(rate=0.0, group=1)
    model = Timm("regnety_002", (), TimmSizes(0, 0, 0), drop, 3, DATA.classes)
    teacher = replace(SAME, model=model)
    mine = Teaching(recipe(teacher), alone(), sharded=False)
    run = Run(teacher=str(tmp_path / "theirs.safetensors"))
    TeacherWeights(run, teacher, mine.model, alone()).each(mine.put)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(mine(images), theirs(images), rtol=1e-5, atol=1e-5)


def test_a_teacher_without_room_is_refused_with_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    big = recipe(SAME)
    size = sum(p.numel() for p in teaching(SAME).model.parameters())
    monkeypatch.setattr(teachers, "room_of", lambda *_: 3.9 * size)
    with pytest.raises(TooLarge) as refused:
        check_room(big, alone(), sharded=False)
    for part in ("--teacher-sharding host", "--teacher.precision bf16", " GB free"):
        assert part in str(refused.value)
    check_room(recipe(replace(SAME, precision="bf16")), alone(), sharded=False)


def test_a_stopwatch_counts_all_calls() -> None:
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(3):
        with watch.running():
            torch.randn(1000).sort()
    assert watch.calls == 3 and watch.seconds() > 0
    watch.begin()
    assert (watch.calls, watch.seconds()) == (0, 0)
