from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rti_exp.analysis import intervention_browser as browser
from rti_exp.analysis.arm_summary import summarize
from rti_exp.analysis.report_page import render_report
from rti_exp.analysis.study import load_study
from tests.support import studies

HOSTILE_TEXTS = dict.fromkeys(
    ("reason", "evidence", "original", "correction", "task", "history", "after", "error", "source", "family"),
    studies.HOSTILE + "\u2028<!--",
)


def page_of(path: Path, **options: int) -> str:
    study = load_study(path)
    return render_report(study, summarize(study), **options)


def data_of(page: str) -> list[dict]:
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert data is not None
    return json.loads(data[1])


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = studies.write_delta_study(tmp_path_factory.mktemp("runs") / "delta")
    records = [studies.intervention(1, **HOSTILE_TEXTS), studies.intervention(1, outcome=studies.HOSTILE)]
    studies.write_run(path, studies.config(7, 0, prompt="<b>"), [studies.train(1)], interventions=records)
    return page_of(path)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_page_loads_nothing_and_runs_one_script(hostile_page: str) -> None:
    tags = Tags()
    tags.feed(hostile_page)
    assert [attributes.get("type") for tag, attributes in tags.seen if tag == "script"] == ["application/json", None]
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in tags.seen}
    for _, attributes in tags.seen:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "@import" not in hostile_page


def test_the_policy_names_the_script_by_its_hash(hostile_page: str) -> None:
    script = re.search(r"<script>(.*?)</script>", hostile_page, flags=re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in hostile_page


def test_model_text_is_inert_and_complete(hostile_page: str) -> None:
    data = data_of(hostile_page)
    (item,) = (item for item in data if item["error"])
    assert item["reason"] == HOSTILE_TEXTS["reason"]
    assert item["history"] == HOSTILE_TEXTS["history"]
    assert hostile_page.count("<script") == 2
    assert "<b>" not in hostile_page
    assert "&lt;/script&gt;&lt;script&gt;document.title" in hostile_page


def test_think_tags_stay_visible(hostile_page: str) -> None:
    assert any(item["history"] == "<think>hm</think> earlier" for item in data_of(hostile_page))


def test_the_headline_numbers_are_on_the_page(hostile_page: str) -> None:
    assert "<td class=number>0.812 [0.750,\u00a00.938]</td>" in hostile_page
    assert "All 11 recorded interventions." in hostile_page


def test_the_page_embeds_a_bounded_sample_and_says_so(tmp_path: Path) -> None:
    outcomes = ["accepted"] * 3 + ["leaked"] * 5 + ["unchanged"]
    records = [studies.intervention(place, outcome) for place, outcome in enumerate(outcomes)]
    studies.write_run(tmp_path, studies.config(5, 0), [], interventions=records, state="interrupted")
    page = page_of(tmp_path, max_interventions=5)
    assert [(item["iteration"], item["outcome"], item["state"]) for item in data_of(page)] == [
        (0, "accepted", "interrupted"),
        (1, "accepted", "interrupted"),
        (3, "leaked", "interrupted"),
        (5, "leaked", "interrupted"),
        (8, "unchanged", "interrupted"),
    ]
    assert "5 of 9 recorded interventions, spread evenly" in page


@pytest.mark.parametrize("finished", [False, True])
def test_nearly_empty_studies_have_a_page(tmp_path: Path, finished: bool) -> None:
    if finished:
        studies.write_run(tmp_path, studies.config(0, 0), [studies.train(1)])
    page = page_of(tmp_path)
    assert data_of(page) == []
    assert "No intervention was recorded." in page


def test_the_difference_of_a_step_is_word_wise() -> None:
    parts = browser.difference_of('{"query": "Temple"}', '{"query": "Temple, Kyoto"}')
    assert parts == [["=", '{"query": "Temple'], ["+", ", Kyoto"], ["=", '"}']]
    assert browser.difference_of("go north", "go south") == [["=", "go "], ["-", "north"], ["+", "south"]]


def test_tokens_have_text_only_if_the_lengths_match() -> None:
    assert browser.entry({"arm": "a", "seed": 0, "run_key": "k"}, {"answers": ["x", 1]}, "done")["answers"] == "x\n1"
    record = {"log_probs": [-0.5, "-inf"], "weights": [1.5], "tokens": ["a", "b"]}
    assert browser.tokens_of(record) == [["a", -0.5, None, 1.5], ["b", "-inf", None, None]]
    assert browser.tokens_of(record | {"tokens": ["a"]})[0][0] is None
    assert browser.tokens_of({"log_probs": None}) == []


def test_any_record_makes_an_entry() -> None:
    row = {"arm": "a", "seed": float("nan"), "run_key": "k"}
    entry = browser.entry(row, {"checks": [1], "iteration": "x", "step": None, "reason": None}, "failed")
    assert (entry["seed"], entry["iteration"], entry["outcome"], entry["checks"]) == (None, None, "", [])
    assert (entry["reason"], entry["difference"]) == ("", [["=", ""]])
    json.dumps(entry, allow_nan=False)


def test_long_texts_are_cut_with_a_mark() -> None:
    assert browser.text_of("x" * 7000).endswith("x [cut: 1000 more characters]")
    assert browser.text_of({"a": 1}) == '{"a": 1}'


@pytest.mark.parametrize(
    ("sizes", "total", "taken"),
    [([10, 1, 10], 9, [4, 1, 4]), ([3, 3], 100, [3, 3]), ([5, 5, 5], 2, [1, 1, 0]), ([], 5, []), ([4], 0, [0])],
)
def test_shares_are_even(sizes: list[int], total: int, taken: list[int]) -> None:
    assert browser.shares(sizes, total) == taken


def in_chromium(tmp_path: Path, text: str) -> str:
    """The page after its script has run."""
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command = ["chromium", *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_browser_runs_the_page(tmp_path: Path, hostile_page: str) -> None:
    page = in_chromium(tmp_path, hostile_page)
    assert re.search(r"<title>Study delta: 7 runs, 6 in the means</title>", page)
    assert '<span id="count" aria-live="polite">11 found, page 1 of 1</span>' in page
    assert "<ins>, Kyoto</ins>" in page
    assert page.count('class="strip"') == 2
    assert '<option value="leaked">leaked (3)</option>' in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_browser_opens_on_the_first_accepted(tmp_path: Path) -> None:
    before = [studies.intervention(1, "leaked", id=str(place)) for place in range(45)]
    rows = [studies.train(1), studies.train(2)]
    studies.write_run(tmp_path / "s", studies.config(5, 0), rows, interventions=[*before, studies.intervention(2)])
    page = in_chromium(tmp_path, page_of(tmp_path / "s"))
    assert "<h2>accepted - nav_hard/0</h2>" in page
    assert "46 found, page 2 of 2" in page
