"""The model card of an export: a README.md as the Hugging Face hub reads it. It is made to be
published, and names no path and no host."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xxhash
from huggingface_hub import EvalResult, ModelCardData

from bigvit import __version__
from bigvit.checkpoint import metrics
from bigvit.checkpoint.manifest import Manifest
from bigvit.checkpoint.model import Found
from bigvit.checkpoint.run import run_of
from bigvit.export import backbone
from bigvit.recipe import ImageSize, Recipe, sides
from bigvit.recipe.bounds import leaves
from bigvit.recipe.find import all_recipes
from bigvit.recipe.store import differences, to_json
from bigvit.recipe.words import read_json

README = "README.md"
MARK = "<!-- bigvit export {} -->\n"  # the last line, with a digest of what stands above it
ON_THE_HUB = {
    "ImageNet-1k": "ILSVRC/imagenet-1k",
    "CIFAR-10": "uoft-cs/cifar10",
    "CIFAR-100": "uoft-cs/cifar100",
    "Fashion-MNIST": "zalando-datasets/fashion_mnist",
}
"""Where the hub has the data sets of bigvit's recipes."""

PAPER = re.compile(r"arXiv:(\d{4}\.\d{5})")


class About(NamedTuple):
    """What an export is, beside its checkpoint."""

    folder: str  # its name alone
    repo: str | None  # on the hub, USER/NAME
    license: str | None
    size: ImageSize  # of its images
    ema: bool  # whether it has the average of the weights
    folded: bool
    classes: list[str] | None
    architecture: str  # timm's name of it
    onnx: float | None  # by how much a logit of model.onnx differs; None: there is none
    digest: str  # of model.safetensors, xxh3-128
    backbone: bool = False  # whether there is no head

    @property
    def named(self) -> str:
        """As timm is given it."""
        return f"hf-hub:{self.repo}" if self.repo else f"local-dir:{self.folder}"


def is_ours(path: Path) -> bool:
    """Whether a README.md is as an export wrote it."""
    text, mark, rest = path.read_text(errors="replace").rpartition(MARK.partition("{")[0])
    return mark + rest == MARK.format(xxhash.xxh3_64_hexdigest(text.encode()))


def card_of(found: Found, about: About) -> str:
    """The whole text."""
    run = _described(found)
    evaluation = _evaluation(found, about)
    title = _title(found, about, run)
    parts = (
        f"---\n{_header(found, about, title, evaluation)}\n---\n\n# {title}\n",
        *_summary(found, about, run),
        *(_use(found.recipe, about) if not about.backbone else ()),
        *(backbone.use(about.named, found.recipe, about.size) if about.backbone else ()),
        *(_results(found, about, evaluation) if not about.backbone else ()),
        *_training(found, run),
        *_provenance(found.manifest, about, run),
        *_limits(found.recipe, about, evaluation),
    )
    text = "\n".join(parts) + "\n"
    return text + MARK.format(xxhash.xxh3_64_hexdigest(text.encode()))


def _described(found: Found) -> dict[str, Any]:
    """recipe.json of the run; nothing where the checkpoint lies elsewhere."""
    try:
        described = read_json(run_of(found.checkpoint) / "recipe.json")
    except (OSError, ValueError):
        return {}
    return described if isinstance(described, dict) else {}


def _evaluation(found: Found, about: About) -> dict[str, float]:
    """What the run counted with these very weights: top1, top5 (percent), test_loss, images."""
    before = "ema_" if about.ema else ""
    last: dict[str, float] = {}
    if about.backbone:
        return last
    try:
        for line in metrics.read_metrics(run_of(found.checkpoint) / metrics.NAME):
            if line.kind == metrics.EVALUATION and line.batch == found.manifest.batch:
                last = {
                    key: line.values[before + key]
                    for key in ("images", "top1", "top5", "test_loss")
                    if isinstance(line.values.get(before + key), int | float)
                }
    except OSError:
        pass
    return last if "top1" in last else {}


def _title(found: Found, about: About, run: Mapping[str, Any]) -> str:
    name = run.get("name")
    return about.repo.rpartition("/")[2] if about.repo else str(name or about.architecture)


def _dataset(recipe: Recipe) -> str:
    return getattr(recipe.data, "dataset", "scikit-learn's digits")


def _split(recipe: Recipe) -> str:
    held_out = getattr(recipe.data, "held_out", 0)
    return f"{held_out:.0%} of the training images, held out" if held_out else "test images"


def _header(found: Found, about: About, title: str, evaluation: Mapping[str, float]) -> str:
    recipe = found.recipe
    where = ON_THE_HUB.get(_dataset(recipe))
    results: list[EvalResult] = []
    if evaluation and about.size == recipe.data.image_size:
        for key, name in (("top1", "Top-1 accuracy"), ("top5", "Top-5 accuracy")):
            if key in evaluation:
                results.append(
                    EvalResult(
                        task_type="image-classification",
                        task_name="Image classification",
                        dataset_type=where or re.sub(r"\W+", "-", _dataset(recipe).lower()),
                        dataset_name=_dataset(recipe),
                        dataset_split=_split(recipe),
                        metric_type="accuracy",
                        metric_name=name,
                        metric_value=round(evaluation[key] / 100, 6),
                    )
                )
    task = "image-feature-extraction" if about.backbone else "image-classification"
    more = [] if about.backbone else ["transformers"]
    data = ModelCardData(
        library_name="timm",
        pipeline_tag=task,
        tags=[task, "timm", *more, "bigvit", *["onnx"] * _has(about)],
        license=about.license,
        datasets=[where] if where else None,
        metrics=None if about.backbone else ["accuracy"],
        model_name=title if results else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def _has(about: About) -> bool:
    return about.onnx is not None


def _summary(found: Found, about: About, run: Mapping[str, Any]) -> Iterator[str]:
    recipe, (height, width) = found.recipe, sides(about.size)
    model = recipe.model
    average = ", the moving average of its weights," if about.ema else ""
    channels = f"{model.in_chans} channel{'s' * (model.in_chans > 1)}"
    classes = ", without its head" if about.backbone else f" and {model.num_classes:,} classes"
    yield (
        f"{type(model).__name__} ({model.summary}){average} with "
        f"{model.parameters(about.size) / 1e6:.2f} M parameters, for images of {height} x {width} "
        f"pixels in {channels}{classes}. It was trained on "
        f"{_dataset(recipe)} by bigvit {_versions(run).get('bigvit', '')}, from the recipe "
        f"`{run.get('name', 'unnamed')}` ({_linked(recipe.source)}). timm builds it as "
        f"`{about.architecture}`, with the arguments in `config.json`.\n"
    )
    if about.license is None:
        yield "**License:** none is stated.\n"


def _linked(text: str) -> str:
    """Papers as links, which the hub finds."""
    return PAPER.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def _use(recipe: Recipe, about: About) -> Iterator[str]:
    yield "## Use\n"
    yield (
        "With timm, whose own code resizes, crops and normalises images as `config.json` says:\n"
    )
    opened = '"photo.jpg"' if recipe.model.in_chans == 3 else '"photo.png"'
    mode = "RGB" if recipe.model.in_chans == 3 else "L"
    yield (
        "```python\n"
        "import timm\n"
        "import torch\n"
        "from PIL import Image\n\n"
        f'model = timm.create_model("{about.named}", pretrained=True).eval()\n'
        "data = timm.data.resolve_model_data_config(model)\n"
        "transform = timm.data.create_transform(**data, is_training=False)\n"
        f'image = Image.open({opened}).convert("{mode}")\n'
        "with torch.no_grad():\n"
        "    logits = model(transform(image)[None])\n"
        "```\n"
    )
    if recipe.model.in_chans == 3:
        yield (
            "With transformers:\n\n"
            "```python\n"
            "from transformers import pipeline\n\n"
            f'classify = pipeline("image-classification", model="{about.repo or about.folder}")\n'
            'classify("photo.jpg")\n'
            "```\n"
        )
    if about.onnx is not None:
        yield (
            "`model.onnx` takes normalised images (B, C, H, W), any number of them, and gives "
            "logits (B, K). Over images of noise they differ from torch's by "
            f"{about.onnx:.1e} at most.\n"
        )


def _results(found: Found, about: About, evaluation: Mapping[str, float]) -> Iterator[str]:
    recipe, manifest = found.recipe, found.manifest
    yield "## Results\n"
    if not evaluation:
        yield "The run counted nothing with these very weights.\n"
        return
    images = f"{int(evaluation['images']):,} " if "images" in evaluation else ""
    rows = [["top-1", f"{evaluation['top1']:.2f} %"]]
    rows += [["top-5", f"{evaluation['top5']:.2f} %"]] if "top5" in evaluation else []
    if (loss := evaluation.get("test_loss")) is not None:
        rows.append(["cross-entropy", f"{loss:.4f}"])
    height, width = sides(recipe.data.image_size)
    yield f"On {images}images of {_dataset(recipe)} ({_split(recipe)}), {height} x {width} pixels,"
    yield f"after update {manifest.update:,} of {recipe.updates:,}, by the run itself:\n"
    yield _table(("", ""), rows)
    if about.size != recipe.data.image_size:
        yield (
            "This export is for {} x {} pixels; nothing was counted at that resolution.\n".format(
                *sides(about.size)
            )
        )


def _training(found: Found, run: Mapping[str, Any]) -> Iterator[str]:
    recipe, manifest = found.recipe, found.manifest
    name = run.get("name")
    yield "## Training\n"
    yield f"Sources: {_linked(recipe.source)}.\n"
    named = all_recipes().get(str(name))
    changed = list(differences(to_json(named), to_json(recipe))) if named else []
    if named and changed:
        yield f"Of bigvit's recipe `{name}` these values were changed:\n"
        yield _table(("value", "change"), [line.split(": ", 1) for line in changed])
    elif named:
        yield f"Every value is as in bigvit {__version__}'s recipe `{name}`.\n"
    else:
        yield "The recipe is its author's own, not one that comes with bigvit.\n"
    init = str(_options(run).get("init", "None"))
    if init != "None":
        whose = (
            f"`{init}`" if init.startswith("timm:") and "local-dir" not in init else "given ones"
        )
        after = f" (of `{recipe.starts_from}`)" if recipe.starts_from else ""
        yield f"It started from other weights: {whose}{after}.\n"
    if recipe.teacher is not None:
        yield f"It learned from a teacher, a {type(recipe.teacher.model).__name__}, as well.\n"
    yield (
        f"{recipe.epochs} epochs of {recipe.updates_per_epoch:,} updates with "
        f"{recipe.batch_size:,} images each; these weights are of update {manifest.update:,}. "
        "All values:\n"
    )
    yield "<details><summary>recipe</summary>\n"
    yield _table(("value", ""), [[path, str(value)] for path, value in leaves(recipe)])
    yield "</details>\n"


def _provenance(manifest: Manifest, about: About, run: Mapping[str, Any]) -> Iterator[str]:
    yield "## Provenance\n"
    versions, options = _versions(run), _options(run)
    spread = str(options.get("sharding", "-"))
    rows = [
        ["trained with", ", ".join(f"{name} {which}" for name, which in versions.items()) or "-"],
        ["git revision of bigvit", str(run.get("git") or "-") + _changed(run)],
        ["ranks, engine", f"{run.get('world', '-')}, {options.get('engine', '-')}"],
        ["sharding", Path(spread).name],  # a file of one's own is named by its path
        ["exported with", f"bigvit {__version__}" + ", affine maps folded" * about.folded],
        ["weights, xxh3-128", about.digest],
    ]
    for split, values in (manifest.data or {}).items():
        said = ", ".join(f"{key} {value}" for key, value in values.items())
        rows.append([f"{split} images", said])
    rows += [["teacher, digest", manifest.teacher]] if manifest.teacher else []
    rows += [["label maps, digest", manifest.label_maps]] if manifest.label_maps else []
    yield _table(("", ""), rows)


def _versions(run: Mapping[str, Any]) -> dict[str, Any]:
    found = run.get("versions")
    return found if isinstance(found, dict) else {}


def _options(run: Mapping[str, Any]) -> dict[str, Any]:
    found = run.get("run")
    return found if isinstance(found, dict) else {}


def _changed(run: Mapping[str, Any]) -> str:
    return " (with changes)" if str(run.get("git") or "").endswith("+") else ""


def _limits(recipe: Recipe, about: About, evaluation: Mapping[str, float]) -> Iterator[str]:
    height, width = sides(about.size)
    yield "## Limits\n"
    if about.backbone:
        yield "- What its maps are worth for another task was not measured."
        yield "- The license of the weights is not that of the images.\n"
        return
    if not recipe.classifies:
        yield "- Its classifier was not trained, and names classes by chance; its features were."
    yield f"- Whatever it is shown, it names one of the {recipe.model.num_classes:,} classes of"
    yield f"  {_dataset(recipe)}, and it has learned what is wrong or one-sided there, too."
    yield f"- It takes images of {height} x {width} pixels alone; others are scaled and cropped."
    if not evaluation:
        yield "- Nobody has counted how often these weights are right."
    else:
        yield "- It was tested on images like those that it was trained on. How it does on others,"
        yield "  and how far its probabilities can be trusted, was not measured."
    if about.classes is None:
        yield "- The names of the classes are not known: it answers with their numbers."
    yield "- The license of the weights is not that of the images.\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
