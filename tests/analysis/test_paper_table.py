from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rti_exp.analysis import paper_table
from rti_exp.analysis.benchmark_scores import (
    AIRLINE,
    CLAW,
    COLUMNS,
    NAVIGATION,
    RETAIL,
    TELECOM,
    benchmark_of,
    collect_scores,
)
from rti_exp.analysis.table_rendering import as_markdown
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
    ("env", "families", "name", "difference"),
    [
        (TAU2, [], TELECOM, "a scripted user, easier than the benchmark's"),
        ({**TAU2, "domain": "retail", "user": "solo"}, [], RETAIL, "no user (solo mode)"),
        (
            {**TAU2, "domain": "airline", "user": "model", "user_model": {"model": "u"}, "heldout_split": "base"},
            [],
            AIRLINE,
            "the user is played by u; the paper's is not known; split base",
        ),
        ({**TAU2, "domain": "mock"}, [], "τ²-mock", "a scripted user, easier than the benchmark's; split test"),
        ({**TAU2, "only": ["a"]}, [], TELECOM, "only some tasks (env.only)"),
        (MCP, ["navigation_route"], NAVIGATION, "map and tasks of this package"),
        ({**MCP, "tasks_file": "mine.jsonl"}, ["navigation", "navigation_walk"], NAVIGATION, "tasks of mine.jsonl"),
        ({**MCP, "tasks_file": "mine.jsonl", "judge": {"model": "judge-7b"}}, ["x"], "MCP mine.jsonl", JUDGED),
        (CLAW_EVAL, [], CLAW, f"the paper does not name its twenty tasks; these are a guess; {JUDGED}"),
        ({**CLAW_EVAL, "selection": ["all"], "judge": None}, [], "Claw-Eval", "no judge"),
        ({"_target_": "rti_exp.envs.bfcl.Bfcl", "category": "base"}, [], "BFCL multi-turn base", ""),
        ({"_target_": "mine.World"}, [], "World", ""),
    ],
)
def test_an_environment_is_a_column_or_another_benchmark(
    env: dict[str, Any], families: list[str], name: str, difference: str
) -> None:
    benchmark = benchmark_of(env, families)
    assert benchmark.name == name
    assert difference in "; ".join(benchmark.differences)
    assert benchmark.column == (name if name in COLUMNS else None)


def test_scores_of_one_policy_share_a_line_alongside_the_papers(tmp_path: Path) -> None:
    """pass@1 by hand: telecom (1 + 0) / 2, navigation 1/4, the second telecom score 0."""
    evaluated(tmp_path / "e" / "one", TAU2, {"a": 4, "b": 0})
    evaluated(tmp_path / "e" / "two", MCP, {"a": 1})
    evaluated(tmp_path / "e" / "three", TAU2, {"a": 0}, seed=1)
    evaluated(tmp_path / "e" / "four", TAU2, {"a": 4}, path="another")
    scores, unreadable = collect_scores([tmp_path / "e"])
    assert unreadable == []
    comparison, details = paper_table.paper_tables(scores)
    assert comparison.columns[2:] == ("Navigation", "τ²-Telecom", "τ²-Retail", "τ²-Airline", "Claw-Eval-Hard20")
    rows = {row[:2]: row[2:] for row in comparison.rows[:6]}
    assert rows["RTI", "paper"] == ("57.33", "61.33", "81.14", "55.92", "50.00")
    assert [row for row in comparison.rows if row[1] == "yours"] == [
        ("another", "yours", "-", "100.0 [100.0, 100.0]", "-", "-", "-"),
        ("my/model", "yours", "25.0 [25.0, 25.0]", "50.0 [0.0, 100.0]", "-", "-", "-"),
        ("my/model", "yours", "-", "0.0 [0.0, 0.0]", "-", "-", "-"),
    ]
    (first,) = [row for row in details.rows if row[3].endswith("one")]
    assert first[:2] == ("my/model", "τ²-Telecom")
    assert first[2].endswith("split test; the paper's is not known; temperature 1")
    assert first[4:] == ("50.0 [0.0, 100.0]", "2", "4", "1")


def test_arms_of_a_study_have_scores_over_their_seeds(tmp_path: Path) -> None:
    """One arm that intervenes and one that does not; both seeds at 0.5; a failed run is listed, not counted."""
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
    scores, unreadable = collect_scores([tmp_path / "runs"])
    assert [score.model for score in scores] == ["p, s: gate.delta=0, GRPO", "p, s: gate.delta=5, RTI"]
    assert [(score.benchmark.column, score.value, score.tasks, score.trials, score.lost) for score in scores] == [
        (TELECOM, 0.5, 2, 8, None)
    ] * 2
    assert scores[0].benchmark.differences[-2:] == ("temperature 0.5", "seeds: 2")
    runs = (tmp_path / "runs" / "s").iterdir()
    [failed] = [path.name for path in runs if '"failed"' in (path / "status.json").read_text()]
    assert [item.reason for item in unreadable] == [f"1 of 5 runs have no score: {failed} failed"]


def test_unreadable_folders_are_listed_and_the_others_are_read(tmp_path: Path) -> None:
    complete = evaluated(tmp_path / "complete", TAU2, {"a": 4})
    (evaluated(tmp_path / "begun", TAU2, {"a": 4}) / "result.json").unlink()
    (evaluated(tmp_path / "cut", TAU2, {"a": 4}) / "result.json").write_text("{")
    (evaluated(tmp_path / "odd", TAU2, {"a": 4}) / "about.json").write_text("[]")
    studies.write_delta_study(tmp_path / "study")  # its configs name no environment
    scores, unreadable = collect_scores([tmp_path, complete])
    assert [score.source for score in scores] == [complete]
    assert {item.source.name: item.reason for item in unreadable if item.source.name != "study"} == {
        "begun": "result.json is missing: the evaluation did not finish",
        "cut": "cannot be read (JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 "
        "(char 1))",
        "odd": "cannot be read (TypeError: list indices must be integers or slices, not str)",
    }
    assert "gate.delta=0: cannot be read (KeyError: 'env')" in [item.reason for item in unreadable]
    assert paper_table.paper_tables(scores, unreadable)[-1].title == "Left out"


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
def test_an_impossible_score_is_excluded_and_the_others_are_kept(
    tmp_path: Path, name: str, old: str | None, new: str
) -> None:
    complete = evaluated(tmp_path / "complete", TAU2, {"a": 4})
    path = evaluated(tmp_path / "bad", TAU2, {"a": 4}) / name
    text = path.read_text()
    assert old is None or old in text
    path.write_text(new if old is None else text.replace(old, new))
    scores, unreadable = collect_scores([tmp_path])
    assert [score.source for score in scores] == [complete]
    assert [item.source.name for item in unreadable] == ["bad"]


def test_hostile_text_is_inert_on_the_page_and_in_markdown(tmp_path: Path) -> None:
    evaluated(tmp_path / "e", TAU2, {"a": 4}, path=studies.HOSTILE)
    evaluated(tmp_path / "m", {**MCP, "tasks_file": studies.HOSTILE}, {"a": 4})
    tables = paper_table.paper_tables(*collect_scores([tmp_path]))
    page = paper_table.as_html(tables)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    text = as_markdown(paper_table.TITLE, tables)
    assert "<script" not in text
    assert "\\| pipe" in text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main([]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "You have no score in these columns yet" in printed
    assert "Your scores" not in printed
    evaluated(tmp_path / "evaluations" / "e", TAU2, {"a": 4, "b": 0})
    evaluated(tmp_path / "evaluations" / "b", {"_target_": "x.Bfcl", "category": "base"}, {"a": 4})
    assert main(["--output", "there"]) == 0
    printed = capsys.readouterr().out
    assert "50.0 [0.0,100.0]" in printed
    assert "Benchmarks that are not in the paper" in printed
    for name in ("article.md", "article.html"):
        text = (tmp_path / "there" / name).read_text(encoding="utf-8")
        assert "61.33" in text.replace("&nbsp;", " ")
        assert "BFCL multi-turn base" in text
    assert main(["nowhere"]) == 2
    assert capsys.readouterr().err == "error: no such folder: nowhere; must be a folder with evaluations or runs\n"
    (tmp_path / "file").write_text("")
    assert main(["--output", "file/x"]) == 1


def test_the_papers_figures_are_never_computed_with() -> None:
    """The constants stand once, in the module that shows them."""
    package = Path(paper_table.__file__).parents[1]
    containing = [path.name for path in package.rglob("*.py") if "57.33" in path.read_text(encoding="utf-8")]
    assert containing == ["paper_table.py"]
    assert json.dumps(paper_table.PAPER_ROWS[0]) == '["Qwen3-8B (base)", [22.67, 14.17, 57.02, 35.53, 16.0]]'


def test_a_folder_without_permission_is_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = evaluated(tmp_path / "complete", TAU2, {"a": 4})
    (tmp_path / "closed").mkdir()
    listed = Path.iterdir

    def iterdir(path: Path) -> Any:  # the tests may run as root, which may read everything
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    scores, unreadable = collect_scores([tmp_path])
    assert [score.source for score in scores] == [complete]
    assert [item.source.name for item in unreadable] == ["closed"]
    assert "Permission denied" in unreadable[0].reason
