"""`bigvit report` of a real run that was stopped and resumed: read, and opened in a browser."""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pictures import DATA, RECIPE, encoded
from pictures import crop as photo

from bigvit.cli import main
from bigvit.evaluate import evaluate_checkpoint
from bigvit.ranks.stopping import SIGNALS
from bigvit.recipe import CrossEntropy, DRLoc
from bigvit.train import main as train

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
ODD = "a <b>&amp; | `c` <img src=x onerror=alert(1)>"  # a class folder may be called so
LOSSES = (
    CrossEntropy(weight=1.0, smoothing=0.1, class_weights=None),
    DRLoc(0.3, None, "absolute", "grid", 0.001, "last", True, 16, None, "mean", 16, 1),
)
SMALL = replace(
    RECIPE,
    source="photographs & <i>crops</i>",
    objectives=LOSSES,
    data=replace(DATA, train_images=48, image_size=32),
    schedule=replace(RECIPE.schedule, epochs=2),
    ema=0.9,
)
"""Three updates an epoch, six in all."""


def write_run(folder: Path) -> Path:
    """Data with a class of an odd name, a run of them that was stopped and resumed."""
    for number in range(72):
        split, name = "train" if number < 48 else "val", ("china", ODD)[number % 2]
        file = folder / "data" / split / name / f"{number:03}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(photo(number), "JPEG"))
    (folder / "own.py").write_text(f"from bigvit.recipe import *\nphotos = {SMALL!r}\n")
    options = f"--data-root {folder}/data --run-dir {folder}/run --engine single --workers 0"
    options += " --log-every 1 --log-norms --checkpoint-every 1"
    args = [f"{folder}/own.py:photos", *options.split(), "--evaluate-ema"]
    assert train([*args, "--stop-after", "4"]) == 85
    assert train([*args, "--resume", "auto"]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    kept = [signal.getsignal(number) for number in SIGNALS]
    yield write_run(tmp_path_factory.mktemp("report"))
    for number, handler in zip(SIGNALS, kept, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    """The report of the run, with all that is computed."""
    out = run.parent / "page.html"
    assert main(["report", str(run), "--out", str(out), "--workers", "0"]) == 0
    return out


def made(*args: object, out: Path) -> str:
    assert main(["report", *map(str, args), "--no-model", "--out", str(out)]) == 0
    return out.read_text()


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


class Balanced(HTMLParser):
    """Fails where a tag is closed that is not the last one open."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.text = list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":  # closed where it is opened
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "path"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def text_of(page: str) -> str:
    """What a reader sees."""
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return " ".join(" ".join(parser.text).split())


def test_a_run_is_told_whole(run: Path, page: Path) -> None:
    html = page.read_text()
    said = text_of(html)
    told = lines(run)
    best = max(line["top1"] for line in told if line["kind"] == "evaluation")
    assert f"Best top-1 {best:.2f} %" in said and "6 of 6 updates" in said
    for title in (
        "Curves",
        "Throughput",
        "Samples",
        "Attention",
        "Offsets",
        "Provenance",
        "Recipe",
    ):
        assert f"{title} " in said
    for chart in (
        "Training loss",
        "Loss: drloc",
        "Test accuracy",
        "Learning rate",
        "Gradient norm",
    ):
        assert f">{chart}</title>" in html
    assert "2 jobs, 1 restart from a checkpoint" in said and "requeue (85): --stop-after" in said
    assert re.search(r"2 20\d\d-\S+ \S+ 4 1 20\d\d-\S+ \S+ 6 done \(0\)", said)
    assert "its source photographs & <i>crops</i>" in said
    data = json.loads((run / "checkpoints/step_00000006/manifest.json").read_text())["body"]["data"]
    assert data["train"]["digest"] in said and data["test"]["contents"] in said
    assert json.loads((run / "recipe.json").read_text())["versions"]["torch"] in said
    assert len(html) < 3e6 and "http" not in html.replace("http-equiv", "")


def test_what_a_model_gets_wrong_is_what_an_evaluation_counts(run: Path, page: Path) -> None:
    html = page.read_text()
    counts = evaluate_checkpoint(run, 8, run.parent / "data", 0)
    matrix = html.split(">Confusion: a row has what a class was taken for</p>")[1].split(
        "</table>"
    )[0]
    cells = [
        [cell or "0" for cell in re.findall(r"<td[^>]*>(\d*)</td>", row)]
        for row in matrix.split("<tbody>")[1].split("</tr>")[:2]
    ]
    assert sum(int(cell) for row in cells for cell in row) == counts["images"] == 24
    assert int(cells[0][0]) + int(cells[1][1]) == counts["top1_correct"]
    wrong = counts["images"] - counts["top1_correct"]
    assert wrong and f"of {wrong} mistake" in text_of(html)
    shown = sum(min(int(cells[i][1 - i]), 3) for i in (0, 1))  # three of a pair of classes
    assert html.count("data:image/webp;base64,") == 12 + 6 + shown


def test_a_chart_has_the_numbers_of_the_log(run: Path, page: Path) -> None:
    blob = page.read_text().split('id="charts">')[1].split("</script>")[0]
    charts = {series["name"]: series for chart in json.loads(blob) for series in chart["series"]}
    loss = [line for line in lines(run) if line["kind"] == "update"]
    assert charts["Training loss"]["x"] == pytest.approx([i / 3 for i in range(1, 7)], rel=1e-4)
    assert charts["Training loss"]["y"] == pytest.approx([e["loss"] for e in loss], rel=1e-4)
    top1 = [line["ema_top1"] for line in lines(run) if line["kind"] == "evaluation"]
    assert charts["top-1 of the average"]["y"] == pytest.approx(top1, rel=1e-4)


def test_without_the_model_nothing_is_computed_and_without_data_it_is_said(
    run: Path, tmp_path: Path
) -> None:
    said = text_of(made(run, out=tmp_path / "page.html"))
    assert "Training loss" in said and "Confusion" not in said and "Samples" not in said
    out = tmp_path / "other.html"
    assert main(["report", str(run), "--data-root", str(tmp_path), "--out", str(out)]) == 0
    said = text_of(out.read_text())
    assert said.count("Left out: ") == 4 and str(tmp_path) in said and "Training loss" in said


def test_several_runs_lie_over_each_other(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    described = json.loads((other / "recipe.json").read_text())
    described["recipe"]["optim"]["lr"] = 0.25
    (other / "recipe.json").write_text(json.dumps(described))
    said = text_of(made(run, other, out=tmp_path / "page.html"))
    assert "2 runs" in said and "1 value of their recipes differ" in said
    assert f"optim.lr {SMALL.optim.lr} 0.25" in said
    same = shutil.copytree(run, tmp_path / "same" / "run")
    said = text_of(made(run, same, out=tmp_path / "page.html"))
    assert "Their recipes are the same in every value" in said and "same/run" in said


def test_a_run_that_goes_on_or_never_came_to_anything_is_told_too(
    run: Path, tmp_path: Path
) -> None:
    part = shutil.copytree(run, tmp_path / "part")
    status = json.loads((part / "status.json").read_text()) | {"state": "running", "update": 4}
    (part / "status.json").write_text(json.dumps(status))
    kept = (part / "metrics.jsonl").read_text().splitlines(keepends=True)
    torn = [*kept[:3], '{"kind": "update", "ba\n', '{"loss": NaN}\n', *kept[3:5], kept[5][:20]]
    (part / "metrics.jsonl").write_text("".join(torn))
    said = text_of(made(part, out=tmp_path / "page.html"))
    assert "killed" in said and "2 damaged lines of metrics.jsonl; the rest is shown" in said
    failed = tmp_path / "failed"
    failed.mkdir()
    reason = {"reason": "rank 1 <ran> out of memory", "exit_code": 1, "state": "error"}
    (failed / "status.json").write_text(json.dumps(status | reason | {"update": 0}))
    said = text_of(made(failed, out=tmp_path / "page.html"))
    assert "rank 1 <ran> out of memory" in said and "No update was logged yet" in said
    (failed / "recipe.json").write_text("{")
    (failed / "metrics.jsonl").write_text("")
    assert "recipe.json is damaged" in text_of(made(failed, out=tmp_path / "page.html"))


def test_what_a_run_rolled_back_past_is_told_with_its_images(run: Path, tmp_path: Path) -> None:
    """By the file as docs/rollback.md describes it."""
    rolled = shutil.copytree(run, tmp_path / "rolled")
    rollback = {
        **{"skipped": [[2, 3]], "batch": 3, "update": 2, "reason": "the loss jumped <9>"},
        **{"loss": None, "loss_before": 0.71, "losses": [], "checkpoint": "step_00000001"},
        **{"went_back_to": 1, "time": "2026-01-01T00:00:00+00:00", "images": "rollbacks/1.txt"},
        **{"ids": [[4, 5], [47, 1000]], "ranks": 1},
    }
    file = rolled / "skipped.json"
    file.write_text(json.dumps({"given": [[5, 5]], "rollbacks": [rollback]}))
    (rolled / "rollbacks").mkdir()
    (rolled / "rollbacks" / "1.txt").write_text("china/000.jpg\nchina/002.jpg\n")
    assert main(["report", str(rolled), "--out", str(out := tmp_path / "page.html")]) == 0
    said = text_of(out.read_text())
    assert "Rolled back 1 time" in said and "the loss jumped <9>" in said and "not finite" in said
    assert (
        "leave out batches 5." in said and "2 china/002.jpg" in said and "past batches 2-3" in said
    )
    assert "rolled back past, 3 of 4 images" in said
    unknown = rollback | {"loss": 9.5, "loss_before": None}  # nobody looked
    file.write_text(json.dumps({"given": [], "rollbacks": [unknown]}))
    said = text_of(made(rolled, out=out))
    assert "9.5 – batch 1" in said and "not finite" not in said
    file.write_text('{"given": "x", "rollbacks": 3}')
    assert "skipped.json is damaged" in text_of(made(rolled, out=out))
    file.write_text("[")
    assert "skipped.json is damaged" in text_of(made(rolled, out=out))


def test_what_was_planned_stands_beside_what_was_measured(run: Path, tmp_path: Path) -> None:
    """As `Foreseen.updated` says it of a GPU; of this device nothing was planned."""
    assert "Nothing was planned for this device" in text_of(made(run, out=tmp_path / "page.html"))
    planned = shutil.copytree(run, tmp_path / "planned")
    line = {"kind": "planned", "batch": 10, "update": 10, "epoch": 3.0, "waiting": 0.01}
    line["planned"] = {"seconds": 0.2, "memory": 40e9}
    line["measured"] = {"seconds": 0.25, "memory": None}
    with (planned / "metrics.jsonl").open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    said = text_of(made(planned, out=tmp_path / "page.html"))
    assert "planned an update, ms 200 250 +25 %" in said
    assert "planned memory, GB 40 – –" in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["EMPTY"], "is not a run folder"),
        (["/nowhere"], "/nowhere is not a run folder"),
        (["RUN", "RUN"], "given twice"),
        (["RUN", "--out", "/nowhere/page.html"], "/nowhere/page.html"),
        (["RUN", "--out", "EMPTY"], "it is a folder"),
        (["RUN", "--out", "OWN"], "it is there already, and is written over where it"),
        (["RUN", "--images", "0"], "--images: 0"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], said: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"RUN": str(run), "EMPTY": str(tmp_path), "OWN": str(tmp_path / "own.py")}
    (tmp_path / "own.py").write_text("precious")
    assert main(["report", *(named.get(arg, arg) for arg in args)]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1 and err[0].startswith("error: ") and said in err[0]
    assert list(tmp_path.glob("*.html")) == []
    assert (tmp_path / "own.py").read_text() == "precious"


def test_markdown_for_a_card(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "card.md"
    args = ["report", str(run), "--format", "markdown", "--out", str(out), "--workers", "0"]
    assert main(args) == 0
    text = out.read_text()
    assert text.startswith("# run\n") and "\n## Provenance\n" in text
    shown = re.findall(r"\]\(<(card_pictures/\d+\.webp)>\)", text)
    assert len(shown) > 20 and all((tmp_path / name).stat().st_size > 50 for name in shown)
    assert "<img" not in text.replace("\\<img", "") and "\\| \\`c\\`" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        bars = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(bars) == 1  # as many cells in each row


# in a browser ------------------------------------------------------------------------------------

BROWSER = pytest.mark.skipif(
    CHROMIUM is None
    or find_spec("playwright") is None
    or find_spec("axe_playwright_python") is None,
    reason="needs chromium (scripts/debian.sh), playwright and axe-playwright-python (dev extra)",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]  # as root, without a screen
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield opened
        opened.close()


@BROWSER
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_sound_in_a_browser(browser: Any, page: Path, width: int, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    screen = {"width": width, "height": 900}
    with browser.new_context(viewport=screen, color_scheme=scheme) as context:
        tab, said, asked = context.new_page(), list[str](), list[str]()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        tab.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        dark = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(15, 18, 22)") == (scheme == "dark")
        images = "[...document.images].filter((image) => !image.alt || !image.src)"
        assert tab.evaluate(f"{images}.length") == 0
        found = Axe().run(tab).response["violations"]
        bad = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
        assert bad == []
        assert said == [] and [url for url in asked if not url.startswith("data:")] == [
            page.as_uri()
        ]


@BROWSER
def test_values_are_read_by_pointer_and_keys_and_the_theme_is_chosen(
    browser: Any, run: Path, page: Path
) -> None:
    with browser.new_context(viewport={"width": 1000, "height": 900}) as context:
        tab = context.new_page()
        tab.goto(page.as_uri())
        chart = tab.locator(".chart", has=tab.get_by_role("heading", name="Training loss"))
        area = chart.locator(".area")
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        tab.mouse.move(box["x"] + box["width"] - 1, box["y"] + 50)
        last = [line["loss"] for line in lines(run) if line["kind"] == "update"]
        assert float(chart.locator(".tip strong").nth(1).inner_text()) == pytest.approx(
            last[-1], rel=1e-3
        )
        inside, around = (chart.locator(each).bounding_box() for each in (".tip svg", ".tip"))
        assert around["x"] < inside["x"] and inside["y"] < around["y"] + around["height"]
        tab.mouse.move(0, 0)
        assert chart.locator(".tip").is_hidden()
        chart.locator(".plot").focus()
        tab.keyboard.press("Home")
        tab.keyboard.press("Home")
        assert float(chart.locator(".tip strong").nth(1).inner_text()) == pytest.approx(
            last[0], rel=1e-3
        )
        ground = "getComputedStyle(document.body).backgroundColor"
        light = tab.evaluate(ground)
        for _ in range(2):
            tab.get_by_role("button", name="Theme").click()
        assert tab.evaluate(ground) != light
