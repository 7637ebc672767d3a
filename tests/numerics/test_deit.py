"""DeiT is timm's `deit_*` and `deit_*_distilled_*`, both heads; how they predict together; and
CaiT's distillation token.

Shapes: B images, N patches, D width, K classes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from each import each_of
from randomised import randomised
from saving import save
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.cait import ClassAttn
from torch import Tensor, nn

from bigvit import models
from bigvit.checkpoint.weights import Fitted, Unfit, fit, read_init
from bigvit.data.loader import test_batches as batches_of
from bigvit.data.prepare import Inputs, Normalise, Targets
from bigvit.data.sources import open_source
from bigvit.engines.single import SingleEngine
from bigvit.evaluate import evaluate, evaluate_checkpoint
from bigvit.export.folder import export
from bigvit.layers.stochastic_depth import Factors, draw
from bigvit.models import Output
from bigvit.optim.groups import parameter_groups
from bigvit.ranks.joining import alone
from bigvit.recipe import (
    CaiT,
    ClassAttention,
    ClassToken,
    CrossEntropy,
    DeiT,
    DistillationToken,
    HardDistillation,
    LayerScale,
    LinearStochasticDepth,
    Model,
    Recipe,
    StochasticDepth,
    Teacher,
    deit,
)
from bigvit.recipe.store import to_json
from bigvit.recipes.digits import digits_vit
from bigvit.task import Task
from bigvit.visualize.attention import attended

TOLERANCE = 1e-5
NO_DROP = LinearStochasticDepth(rate=0.0, group=8)
TOKEN = DistillationToken(prediction="softmax", decayed=False)
OF_LOGITS = DistillationToken(prediction="logits", decayed=True)
TINY = DeiT(2, 24, 2, 2, 2.0, TOKEN, NO_DROP, 1, 10)
NAMES = {"ti16": "tiny", "s16": "small", "b16": "base"}
PUBLISHED = {  # parameters (thesis table 3.1 has 5, 22 and 86 M; with the token, counted by timm)
    ("ti16", None): 5_717_416,
    ("s16", None): 22_050_664,
    ("b16", None): 86_567_656,
    ("ti16", TOKEN): 5_910_800,
    ("s16", TOKEN): 22_436_432,
    ("b16", TOKEN): 87_338_192,
}


def of_size(size: str, token: DistillationToken | None) -> DeiT:
    return deit(size, distillation=token, drop_path=NO_DROP, num_classes=1000, in_chans=3)


def architecture(size: str, token: DistillationToken | None) -> str:
    return f"deit_{NAMES[size]}{'_distilled' if token else ''}_patch16_224"


def built(model: Model, size: int) -> Any:
    """Ours, random."""
    return randomised(models.build(model, size))


def images(size: int, channels: int = 3, count: int = 2) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("size", "token"), [("ti16", None), ("ti16", TOKEN), ("s16", TOKEN), ("b16", TOKEN)]
)
@torch.no_grad()
def test_logits_of_both_heads_equal_those_of_timm(size: str, token: DistillationToken | None):
    ours = built(of_size(size, token), 224)
    theirs: Any = timm.create_model(architecture(size, token))
    theirs.load_state_dict(ours.state_dict())
    x = images(224)
    if token is None:
        expected = [theirs.eval()(x)]
    else:
        theirs.distilled_training = True  # it then tells the heads apart; nothing of it drops
        expected = list(theirs.train()(x))
    output = ours(x)
    found = [output.logits] if token is None else [output.logits, output.distillation]
    differences = [
        (one - other).abs().max().item() for one, other in zip(found, expected, strict=True)
    ]
    print(architecture(size, token), *(f"{each:.1e}" for each in differences))
    assert all(each.std() > 0.5 for each in expected) and max(differences) <= TOLERANCE
    if token is not None:
        assert (expected[0] - expected[1]).abs().max() > 0.5, "the heads differ"


@each_of(("size", "token"), PUBLISHED)
def test_names_shapes_and_sizes_are_timms(size: str, token: DistillationToken | None):
    with torch.device("meta"):
        ours = models.build(of_size(size, token), 224).state_dict()
        theirs = timm.create_model(architecture(size, token)).state_dict()
    assert {n: w.shape for n, w in ours.items()} == {n: w.shape for n, w in theirs.items()}
    assert of_size(size, token).parameters(224) == PUBLISHED[size, token]
    assert sum(w.numel() for w in ours.values()) == PUBLISHED[size, token]


@torch.no_grad()
def test_each_parameter_shows_in_the_prediction():
    ours, x = built(TINY, 8), images(8, 1)
    before = ours(x).prediction("softmax")
    for name, parameter in ours.named_parameters():
        saved = parameter.clone()
        parameter.mul_(0.5)
        difference = (ours(x).prediction("softmax") - before).abs().max()
        parameter.copy_(saved)
        assert difference > 10 * TOLERANCE, name


def test_a_prediction_adds_softmaxes_or_averages_logits():
    first, second = 3 * torch.randn(2, 64, 10, generator=torch.Generator().manual_seed(0))
    output = Output(first, first[:, None], (1, 1), first, {}, second)
    p = first.double().softmax(dim=1) + second.double().softmax(dim=1)
    found = output.prediction("softmax")
    torch.testing.assert_close(found.softmax(dim=1).double(), p / 2, rtol=1e-5, atol=1e-7)
    assert torch.equal(found.argmax(dim=1), p.argmax(dim=1))
    assert torch.equal(output.prediction("logits"), (first + second) / 2)
    assert not torch.equal(found.argmax(dim=1), output.prediction("logits").argmax(dim=1)), (
        "they differ"
    )
    assert torch.equal(output._replace(distillation=None).prediction("softmax"), first)
    narrow = output._replace(logits=first.bfloat16(), distillation=second.bfloat16())
    assert narrow.prediction("softmax").dtype == torch.float32
    far = output._replace(logits=1e4 * first, distillation=-1e4 * first)
    assert far.prediction("softmax").isfinite().all()


def recipe_of(model: Any) -> Recipe:
    """Of a student of scanned digits with a token, whose teacher is a plain ViT."""
    data, objectives = (
        digits_vit.data,
        (CrossEntropy(0.5, 0.1, class_weights=None), HardDistillation(0.5, "distillation")),
    )
    teacher = Teacher(digits_vit.model, data.image_size, data.mean, data.std, "fp32")
    return replace(digits_vit, model=model, objectives=objectives, teacher=teacher)


def task_of(model: Any, seed: int = 0) -> Task:
    task = Task(recipe_of(model))
    randomised(task.model, seed)
    return task


@each_of("token", [TOKEN, OF_LOGITS])
def test_only_the_repositorys_token_is_decayed(token: DistillationToken):
    task = task_of(replace(TINY, distillation=token))
    names = dict(task.named_parameters())
    groups = parameter_groups(names, set(names), task, task.recipe)
    (plain,) = (group["params"] for group in groups if group["weight_decay"] == 0)
    own = task.model
    assert any(own.dist_token is each for each in plain) != token.decayed
    for kept in (own.cls_token, own.pos_embed, own.head_dist.bias):
        assert any(kept is each for each in plain)
    assert task.layer_id("model.dist_token") == 0
    assert task.layer_id("model.head_dist.weight") == task.layers == 3


def test_each_half_of_the_loss_moves_its_own_head():
    task, x = task_of(TINY), images(8, 1, count=4)
    teacher = torch.randn(4, 10)
    dense = torch.eye(10)[:4]
    inputs = Inputs(x, Targets(torch.arange(4), dense, teacher), task.draws(0, (0, 4)), 0)
    losses = task(inputs)
    assert list(losses) == ["cross_entropy", "hard_distillation"]
    heads = (task.model.head.weight, task.model.head_dist.weight)
    for name, moved in zip(losses, (0, 1), strict=True):
        found = torch.autograd.grad(losses[name], heads, retain_graph=True, allow_unused=True)
        assert [each is not None for each in found] == [moved == 0, moved == 1]


@torch.no_grad()
def test_an_evaluation_counts_the_heads_and_both_in_one_pass(tmp_path: Path):
    task = task_of(TINY, seed=1)
    data = task.recipe.data
    source, calls = open_source(data, "test"), list[int]()

    def heads(x: Tensor) -> dict[str, Tensor]:
        calls.append(len(x))
        return task.predictions(x)

    found = evaluate(heads, source, data, 64, alone())
    assert sum(calls) == 320, "five batches of 64 for 300 images"
    batches = list(batches_of(source, data, 300, 0, 1, 0))
    outputs = task.model(Normalise(data)(batches[0].images))
    targets = batches[0].targets
    wanted = {
        "class_head": outputs.logits,
        "distillation_head": outputs.distillation,
        "logits": outputs.logits.softmax(1) + outputs.distillation.softmax(1),
    }
    right = {name: int((x.argmax(dim=1) == targets).sum()) for name, x in wanted.items()}
    assert len(set(right.values())) == 3, "the three differ"
    assert found.top1 == right.pop("logits")
    assert {name: counts.top1 for name, counts in found.heads.items()} == right
    loss = nn.functional.cross_entropy(outputs.distillation, targets).item()
    assert found.heads["distillation_head"].loss == pytest.approx(loss, rel=1e-5)
    alone_ = evaluate(task.predict, source, data, 64, alone())
    assert alone_ == replace(found, heads={})
    assert found.as_json()["class_head"]["top1_correct"] == right["class_head"]

    engine = SingleEngine(lambda: task, task.recipe, replace(alone(), device=torch.device("cpu")))
    stored = to_json(task.recipe)
    checkpoint = save(engine, tmp_path / "checkpoints", 5, stored, keep=1)
    again = evaluate_checkpoint(checkpoint, 64, workers=0)
    assert {n: again[n]["top1_correct"] for n in right} == right
    assert again["top1_correct"] == found.top1

    folder = export(checkpoint, tmp_path / "export")
    theirs: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert isinstance(theirs.pretrained_cfg["classifier"], list | tuple)
    x = Normalise(data)(batches[0].images[:8])
    expected = task.model(x).prediction("logits")  # that is how timm predicts
    torch.testing.assert_close(theirs.eval()(x), expected, rtol=0, atol=1e-5)
    ours = models.build(TINY, 8)
    assert fit(read_init(str(folder)), ours, (4, 4)) == Fitted(False, False)
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, task.model.state_dict()[name])


@each_of("token", [None, TOKEN])
@torch.no_grad()
def test_the_authors_files_are_read_and_positions_of_patches_alone_resampled(
    token: DistillationToken | None, tmp_path: Path
):
    """As they are published: {"model": weights}, of 224 pixels; wanted at 384 (here 64, 96)."""
    small = DeiT(16, 48, 2, 3, 4.0, token, NO_DROP, 3, 10)
    sizes: Any = {"embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 10}
    name = architecture("s16", token)
    theirs = randomised(timm.create_model(name, img_size=64, **sizes))
    file = tmp_path / "deit.pth"
    torch.save({"model": theirs.state_dict()}, file)
    larger = timm.create_model(name, img_size=96, **sizes)
    others = 1 if token is None else 2
    state = theirs.state_dict()
    state["pos_embed"] = resample_abs_pos_embed(
        state["pos_embed"], [6, 6], [4, 4], num_prefix_tokens=others
    )
    larger.load_state_dict(state)
    ours = models.build(small, 96).eval()
    assert fit(read_init(str(file)), ours, (6, 6)) == Fitted(True, False)
    assert torch.equal(ours.pos_embed[:, :others], theirs.state_dict()["pos_embed"][:, :others])
    expected = larger.eval()(images(96))
    torch.testing.assert_close(
        ours(images(96)).prediction("logits"), expected, rtol=0, atol=TOLERANCE
    )
    # a head of other classes is made anew, and so is the other
    other_heads = models.build(replace(small, num_classes=7), 96)
    assert fit(read_init(str(file)), other_heads, (6, 6)) == Fitted(True, True)
    wanted = models.build(replace(small, distillation=None if token else TOKEN), 96)
    with pytest.raises(Unfit, match="weights are (unexpected|missing), dist_token"):
        fit(read_init(str(file)), wanted, (6, 6))


def test_what_the_class_token_attends_to_is_the_patches():
    """With a token beside it, too."""
    for model in (TINY, replace(CAIT, in_chans=1, patch_size=2)):
        maps, output = attended(built(model, 8), images(8, 1))
        assert {each.shape[2] for each in maps.values()} == {16} == {output.grid[0] ** 2}
        assert all((each.sum(dim=2) < 1).all() for each in maps.values())


@each_of("blocks", [1, 2, 12])
def test_linear_stochastic_depth_is_timms(blocks: int):
    depth = LinearStochasticDepth(rate=0.1, group=8)
    theirs = [x.item() for x in torch.linspace(0, 0.1, blocks)]
    expected = [rate for rate in theirs for _ in range(2)]
    assert depth.rates(2 * blocks) == pytest.approx(expected, abs=1e-7)
    drawn = draw(depth, 2 * blocks, 0, 0, (0, 20_000))
    assert isinstance(drawn, Factors)
    for rate, row in zip(expected, drawn.factors, strict=True):
        kept = (row > 0).double().mean().item()
        assert kept == pytest.approx(1 - rate, abs=4 * (rate / 20_000) ** 0.5 + 1e-12)
        torch.testing.assert_close(row[row > 0], torch.full_like(row[row > 0], 1 / (1 - rate)))


@each_of(("rate", "group"), [(0.2, 8), (0.5, 4), (0.3, 16)])
def test_linear_stochastic_depth_keeps_what_its_rates_say_of_a_group(rate: float, group: int):
    depth = LinearStochasticDepth(rate, group)
    kept, rates = depth.kept(24), depth.rates(24)
    assert kept[:2] == [group, group], "the first block drops nothing"
    for number, each in zip(kept, rates, strict=True):
        assert abs(number - group * (1 - each)) < 1
    assert abs(sum(kept) - group * sum(1 - each for each in rates)) <= 0.5
    assert f"{max(kept)} to {min(kept)} of every {group}" in depth.summary(24)


SECOND = ClassAttention(depth=2, keys="class and patches")
NONE = StochasticDepth(0.0, 8)
CAIT = CaiT(14, 32, 2, 4, 2.0, True, LayerScale(0.5), SECOND, TOKEN, False, NONE, 3, 10)


@torch.no_grad()
def test_caits_token_attends_as_the_class_token_does():
    """timm's class attention, told each token in turn; the order of keys does not matter."""
    ours, x = built(CAIT, 42), images(42)
    features = ours.features(x, ours.walk(None, ()))
    patches, tokens = features.stream, ours.class_tokens(len(x))
    assert tokens.shape[1] == 2
    for block in ours.blocks_token_only:
        theirs = ClassAttn(32, 4, qkv_bias=True)
        theirs.load_state_dict(block.attn.state_dict())
        z = block.norm1(torch.cat([tokens, patches], dim=1))
        swapped = torch.cat([z[:, 1:2], z[:, :1], z[:, 2:]], dim=1)
        attending = torch.cat([theirs(z), theirs(swapped)], dim=1)
        tokens = tokens + block.gamma_1 * attending
        tokens = tokens + block.gamma_2 * block.mlp(block.norm2(tokens))
    both, output = ours.norm(tokens), ours(x)
    torch.testing.assert_close(output.logits, ours.head(both[:, 0]), rtol=0, atol=TOLERANCE)
    by_token = ours.head_dist(both[:, 1])
    torch.testing.assert_close(output.distillation, by_token, rtol=0, atol=TOLERANCE)
    assert (output.logits - output.distillation).abs().max() > 0.1


def test_caits_token_is_counted_and_may_stand_where_the_class_token_does():
    for pooling in (SECOND, ClassAttention(1, "patches"), ClassToken(1)):
        model = replace(CAIT, pooling=pooling)
        ours = built(model, 42)
        assert model.parameters(42) == sum(p.numel() for p in ours.parameters())
        assert ours(images(42)).distillation.shape == (2, 10)
        assert "dist_token" in ours.no_weight_decay()
    with pytest.raises(ValueError, match="no CaiT but with .* no distillation token"):
        CAIT.timm(42)
