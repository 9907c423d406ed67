"""The article's table beside a user's figures: what is found, in which column, how it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rti_exp.analysis import article, tables
from rti_exp.analysis.benchmarks import AIRLINE, CLAW, NAVIGATION, RETAIL, TELECOM, measured_in, place_of
from rti_exp.article import main
from rti_exp.evaluation.pass_rates import estimates
from rti_exp.evaluation.rollout_files import EvaluationFolder
from tests.support import studies

TAU2 = {"_target_": "rti_exp.envs.tau2.Tau2", "domain": "telecom", "user": "scripted", "heldout_split": "test"}
MCP = {"_target_": "rti_exp.envs.mcp.Mcp", "tasks_file": "builtin:navigation", "judge": None}
CLAW_EVAL = {"_target_": "rti_exp.envs.claw_eval.ClawEval", "selection": ["hard20"], "judge": {"model": "judge-7b"}}
JUDGED = "the judge is judge-7b"


def evaluated(
    folder: Path, env: Mapping[str, Any], successes: Mapping[str, int], *, path: str = "my/model", **more: Any
) -> Path:
    """An evaluation's folder as rti_exp.evaluate leaves it: four samples of each task."""
    about = {"policy": {"path": path}, "weights": [["a", 1, 2]], "env": env, "temperature": 1.0, "seed": 0, **more}
    names = {"samples": 4, "infrastructure_failures": 0, "reward_mean": 0.0}
    tasks = [{"task_id": task, "family": "f", "successes": count, **names} for task, count in successes.items()]
    wanted = 4 * len(tasks)
    EvaluationFolder(folder, about).finish(
        {
            "iteration": 0,
            "rollouts": wanted,
            "wanted": wanted,
            "infrastructure_failures": 1,
            "truncated": 0,
            "estimates": estimates(tasks, [1, 4]),
            "tasks": tasks,
        }
    )
    return folder


@pytest.mark.parametrize(
    ("env", "families", "benchmark", "told"),
    [
        (TAU2, [], TELECOM, "a scripted user, easier than the benchmark's"),
        ({**TAU2, "domain": "retail", "user": "solo"}, [], RETAIL, "no user (solo mode)"),
        (
            {**TAU2, "domain": "airline", "user": "model", "user_model": {"model": "u"}, "heldout_split": "base"},
            [],
            AIRLINE,
            "the user is played by u; the article's is not known; split base",
        ),
        ({**TAU2, "domain": "mock"}, [], "τ²-mock", "a scripted user, easier than the benchmark's; split test"),
        ({**TAU2, "only": ["a"]}, [], TELECOM, "only some tasks (env.only)"),
        (MCP, ["navigation_route"], NAVIGATION, "a map and tasks made here"),
        ({**MCP, "tasks_file": "mine.jsonl"}, ["navigation", "navigation_walk"], NAVIGATION, "tasks of mine.jsonl"),
        ({**MCP, "tasks_file": "mine.jsonl", "judge": {"model": "judge-7b"}}, ["x"], "MCP mine.jsonl", JUDGED),
        (CLAW_EVAL, [], CLAW, f"which twenty tasks the article means is a guess; {JUDGED}"),
        ({**CLAW_EVAL, "selection": ["all"], "judge": None}, [], "Claw-Eval", "no judge"),
        ({"_target_": "rti_exp.envs.bfcl.Bfcl", "category": "base"}, [], "BFCL multi-turn base", ""),
        ({"_target_": "mine.World"}, [], "World", ""),
    ],
)
def test_an_environment_is_a_column_or_another_benchmark(
    env: dict[str, Any], families: list[str], benchmark: str, told: str
) -> None:
    found = place_of(env, families)
    assert found.benchmark == benchmark
    assert told in "; ".join(found.differs)
    assert found.column == (benchmark if benchmark in article.COLUMNS else None)


def test_figures_of_one_policy_stand_in_one_line_beside_the_articles(tmp_path: Path) -> None:
    """pass@1 by hand: telecom (1 + 0) / 2, navigation 1/4, the second telecom figure 0."""
    evaluated(tmp_path / "e" / "one", TAU2, {"a": 4, "b": 0})
    evaluated(tmp_path / "e" / "two", MCP, {"a": 1})
    evaluated(tmp_path / "e" / "three", TAU2, {"a": 0}, seed=1)
    evaluated(tmp_path / "e" / "four", TAU2, {"a": 4}, path="another")
    found, bad = measured_in([tmp_path / "e"])
    assert bad == []
    comparison, details = article.sheets(found)
    assert comparison.columns[2:] == ("Navigation", "τ²-Telecom", "τ²-Retail", "τ²-Airline", "Claw-Eval-Hard20")
    rows = {row[:2]: row[2:] for row in comparison.rows[:6]}
    assert rows["RTI", "article"] == ("57.33", "61.33", "81.14", "55.92", "50.00")
    assert [row for row in comparison.rows if row[1] == "yours"] == [
        ("another", "yours", "-", "100.0 [100.0, 100.0]", "-", "-", "-"),
        ("my/model", "yours", "25.0 [25.0, 25.0]", "50.0 [0.0, 100.0]", "-", "-", "-"),
        ("my/model", "yours", "-", "0.0 [0.0, 0.0]", "-", "-", "-"),
    ]
    (first,) = [row for row in details.rows if row[3].endswith("one")]
    assert first[:2] == ("my/model", "τ²-Telecom")
    assert first[2].endswith("split test; the article's is not known; temperature 1")
    assert first[4:] == ("50.0 [0.0, 100.0]", "2", "4", "1")


def test_arms_of_a_study_are_figures_over_their_seeds(tmp_path: Path) -> None:
    """One arm that intervenes and one that does not; both seeds at 0.5; a run that failed is told, not counted."""
    more = {"env": TAU2, "policy": {"path": "p"}, "eval": {"temperature": 0.5}}
    algorithm = {"_target_": "rti_exp.objective.grpo.GRPO"}
    for delta in (0, 5):
        for seed in (0, 1):
            tasks = {"t/0": 8 * seed, "t/1": 8 - 8 * seed}
            rows = [studies.train(1), studies.train(2), studies.evaluation(2, tasks)]
            settings = studies.config(delta, seed, algorithm=algorithm, **more)
            studies.write_run(tmp_path / "runs" / "s", settings, rows, overrides=[f"gate.delta={delta}"])
    settings = studies.config(5, 2, algorithm=algorithm, **more)
    studies.write_run(tmp_path / "runs" / "s", settings, [], overrides=["gate.delta=5"], state="failed")
    found, bad = measured_in([tmp_path / "runs"])
    assert [one.who for one in found] == ["p, s: gate.delta=0, GRPO", "p, s: gate.delta=5, RTI"]
    assert [(one.place.column, one.value, one.tasks, one.trials, one.lost) for one in found] == [
        (TELECOM, 0.5, 2, 8, None)
    ] * 2
    assert found[0].place.differs[-2:] == ("temperature 0.5", "seeds: 2")
    runs = (tmp_path / "runs" / "s").iterdir()
    [failed] = [path.name for path in runs if '"failed"' in (path / "status.json").read_text()]
    assert [one.why for one in bad] == [f"1 of 5 runs have no figure: {failed} failed"]


def test_what_cannot_be_read_is_told_and_ends_nothing(tmp_path: Path) -> None:
    whole = evaluated(tmp_path / "whole", TAU2, {"a": 4})
    (evaluated(tmp_path / "begun", TAU2, {"a": 4}) / "result.json").unlink()
    (evaluated(tmp_path / "cut", TAU2, {"a": 4}) / "result.json").write_text("{")
    (evaluated(tmp_path / "odd", TAU2, {"a": 4}) / "about.json").write_text("[]")
    studies.write_delta_study(tmp_path / "study")  # its configs name no environment
    found, bad = measured_in([tmp_path, whole])
    assert [one.source for one in found] == [whole]
    assert {one.source.name: one.why for one in bad if one.source.name != "study"} == {
        "begun": "result.json is missing: it was not ended",
        "cut": "it cannot be read (JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 "
        "(char 1))",
        "odd": "it cannot be read (TypeError: list indices must be integers or slices, not str)",
    }
    assert "gate.delta=0: it cannot be read (KeyError: 'env')" in [one.why for one in bad]
    assert article.sheets(found, bad)[-1].title == "Left out"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("result.json", '"samples": 4', '"samples": Infinity'),
        ("result.json", '"value": 1.0', '"value": -3'),
        ("result.json", '"value": 1.0', '"value": 1e300'),
        ("result.json", '"value": 1.0', f'"value": 1{"0" * 400}'),
        ("about.json", '"temperature": 1.0', f'"temperature": 1{"0" * 400}'),
        ("about.json", '"_target_"', '"target"'),
        ("about.json", None, "[" * 200_000),
    ],
)
def test_an_impossible_figure_is_left_out_and_the_others_are_not(
    tmp_path: Path, name: str, old: str | None, new: str
) -> None:
    whole = evaluated(tmp_path / "whole", TAU2, {"a": 4})
    path = evaluated(tmp_path / "bad", TAU2, {"a": 4}) / name
    text = path.read_text()
    assert old is None or old in text
    path.write_text(new if old is None else text.replace(old, new))
    found, bad = measured_in([tmp_path])
    assert [one.source for one in found] == [whole]
    assert [one.source.name for one in bad] == ["bad"]


def test_hostile_text_is_inert_on_the_page_and_in_markdown(tmp_path: Path) -> None:
    evaluated(tmp_path / "e", TAU2, {"a": 4}, path=studies.HOSTILE)
    evaluated(tmp_path / "m", {**MCP, "tasks_file": studies.HOSTILE}, {"a": 4})
    sheets = article.sheets(*measured_in([tmp_path]))
    page = article.as_html(sheets)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    text = tables.as_markdown(article.TITLE, sheets)
    assert "<script" not in text
    assert "\\| pipe" in text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main([]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Nothing of yours is in these columns yet" in told
    assert "Your figures" not in told
    evaluated(tmp_path / "evaluations" / "e", TAU2, {"a": 4, "b": 0})
    evaluated(tmp_path / "evaluations" / "b", {"_target_": "x.Bfcl", "category": "base"}, {"a": 4})
    assert main(["--output", "there"]) == 0
    told = capsys.readouterr().out
    assert "50.0 [0.0,100.0]" in told
    assert "Benchmarks that the article does not have" in told
    for name in ("article.md", "article.html"):
        text = (tmp_path / "there" / name).read_text(encoding="utf-8")
        assert "61.33" in text.replace("&nbsp;", " ")
        assert "BFCL multi-turn base" in text
    assert main(["nowhere"]) == 2
    assert capsys.readouterr().err == "error: nowhere: must be a folder with evaluations or runs; there is none\n"
    (tmp_path / "file").write_text("")
    assert main(["--output", "file/x"]) == 1


def test_no_cell_of_the_article_is_computed_with() -> None:
    """The constants stand once, in the module that shows them."""
    package = Path(article.__file__).parents[1]
    having = [path.name for path in package.rglob("*.py") if "57.33" in path.read_text(encoding="utf-8")]
    assert having == ["article.py"]
    assert json.dumps(article.ARTICLE[0]) == '["Qwen3-8B (base)", [22.67, 14.17, 57.02, 35.53, 16.0]]'


def test_a_folder_that_may_not_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluated(tmp_path / "whole", TAU2, {"a": 4})
    (tmp_path / "closed").mkdir()
    listed = Path.iterdir

    def iterdir(path: Path) -> Any:  # root may read everything: the refusal is the file system's, made here
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found, bad = measured_in([tmp_path])
    assert [one.source for one in found] == [whole]
    assert [one.source.name for one in bad] == ["closed"]
    assert "Permission denied" in bad[0].why
