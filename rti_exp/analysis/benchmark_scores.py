"""A user's benchmark scores: evaluations (`rti_exp.evaluate`) and runs, collected from folders.

An environment's config says which column of the paper's table a score belongs to, and how the evaluation differs from
the paper's, as far as that is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rti_exp.analysis.arm_summary import ArmSummary, at_last, heldout, summarize
from rti_exp.analysis.run_files import number_or_nan
from rti_exp.analysis.study import Study, StudyError, load_study, records, select
from rti_exp.runs.bounded import bounded, load_yaml, read_text

NAVIGATION, TELECOM, RETAIL, AIRLINE, CLAW = "Navigation", "τ²-Telecom", "τ²-Retail", "τ²-Airline", "Claw-Eval-Hard20"
COLUMNS = (NAVIGATION, TELECOM, RETAIL, AIRLINE, CLAW)
"""The columns of the paper's table, in its order."""
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, yaml.YAMLError)
"""Exceptions that reading a damaged folder may raise."""
MAX_DEPTH = 3
"""Levels of folders that are searched below a given one."""
NAMED_RUNS = 5
"""Unusable runs that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A column of the paper's table or another benchmark, and how the evaluation differs from the paper's."""

    name: str
    differences: tuple[str, ...] = ()

    @property
    def column(self) -> str | None:
        return self.name if self.name in COLUMNS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """pass@1 of one policy on one benchmark: `value` in [0, 1] with its 95% interval."""

    model: str
    identity: str
    """The same for scores of one policy with the same weights."""
    benchmark: Benchmark
    value: float
    low: float
    high: float
    tasks: int
    trials: int
    """The largest number of samples of a task."""
    lost: int | None
    """Rollouts lost to the infrastructure; None if not recorded."""
    source: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A folder with an evaluation or a study that gives no score."""

    source: Path
    reason: str


def benchmark_of(env: Mapping[str, Any], families: Sequence[str] = ()) -> Benchmark:
    """The benchmark of an environment's config.

    Args:
        env: the config's node `env`.
        families: of the evaluated tasks.
    """
    target = str(env["_target_"]).rpartition(".")[2]
    if target == "Tau2":
        return _tau2(env)
    if target == "Mcp":
        return _mcp(env, families)
    if target == "ClawEval":
        return _claw(env)
    names = {"Bfcl": f"BFCL multi-turn {env.get('category')}"}
    return Benchmark(name=names.get(target, target))


def _tau2(env: Mapping[str, Any]) -> Benchmark:
    names = {"telecom": TELECOM, "retail": RETAIL, "airline": AIRLINE}
    name = names.get(str(env.get("domain")), f"τ²-{env.get('domain')}")
    unknown = "; the paper's is not known" if name in COLUMNS else ""
    users = {
        "scripted": "a scripted user, easier than the benchmark's",
        "solo": "no user (solo mode)",
        "model": f"the user is played by {_model(env.get('user_model'))}{unknown}",
    }
    differences = [users.get(str(env.get("user")), f"user {env.get('user')}")]
    differences.append(f"split {env.get('heldout_split')}{unknown}")
    if env.get("only"):
        differences.append("only some tasks (env.only)")
    return Benchmark(name=name, differences=tuple(differences))


def _mcp(env: Mapping[str, Any], families: Sequence[str]) -> Benchmark:
    judge = (f"the judge is {_model(env.get('judge'))}",) if env.get("judge") else ()
    tasks_file = env.get("tasks_file")
    if tasks_file == "builtin:navigation":
        tasks = "map and tasks of this package; the paper's are not public"
    elif families and all(name.startswith("navigation") for name in families):
        tasks = f"tasks of {tasks_file}; the paper's are not public"
    else:
        return Benchmark(name=f"MCP {tasks_file}", differences=judge)
    return Benchmark(name=NAVIGATION, differences=(tasks, *judge))


def _claw(env: Mapping[str, Any]) -> Benchmark:
    judge = f"the judge is {_model(env.get('judge'))}; the paper's is not known" if env.get("judge") else "no judge"
    if env.get("selection") == ["hard20"]:
        return Benchmark(name=CLAW, differences=("the paper does not name its twenty tasks; these are a guess", judge))
    return Benchmark(name="Claw-Eval", differences=(judge,))


def _model(node: Any) -> str:
    return str(node.get("model")) if isinstance(node, Mapping) else "a model"


def collect_scores(roots: Sequence[Path]) -> tuple[list[Score], list[Unreadable]]:
    """All scores in and below these folders, evaluations first."""
    scores: list[Score] = []
    unreadable: list[Unreadable] = []
    folders = list(dict.fromkeys(folder for root in roots for folder in _folders(root, MAX_DEPTH, unreadable)))
    for folder in folders:
        if (folder / "about.json").is_file():
            try:
                scores.append(_evaluation_score(folder))
            except DAMAGE as error:
                unreadable.append(Unreadable(source=folder, reason=_reason(error)))
    for study in dict.fromkeys(folder.parent for folder in folders if (folder / "status.json").is_file()):
        _add_study(study, scores, unreadable)
    return scores, unreadable


def _folders(root: Path, depth: int, unreadable: list[Unreadable]) -> Iterator[Path]:
    """The folder and those below it, to a depth. Folders that cannot be listed are added to `unreadable`."""
    yield root
    try:
        if not depth or any((root / name).is_file() for name in ("about.json", "status.json")):
            return
        entries = [entry for entry in sorted(root.iterdir()) if entry.is_dir() and not entry.is_symlink()]
    except OSError as error:
        unreadable.append(Unreadable(source=root, reason=_reason(error)))
        return
    for entry in entries:
        if not entry.name.startswith("."):
            yield from _folders(entry, depth - 1, unreadable)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{Path(str(error.filename)).name} is missing: the evaluation did not finish"
    return f"cannot be read ({type(error).__name__}: {error!s:.80})"


def _evaluation_score(folder: Path) -> Score:
    """
    Raises:
        one of DAMAGE: the evaluation did not finish, or a file is damaged.
    """
    about = bounded(json.loads(read_text(folder / "about.json")))
    result = bounded(json.loads(read_text(folder / "result.json")))
    estimate, tasks = result["estimates"]["pass@1"], result["tasks"]
    benchmark = benchmark_of(about["env"], [str(task["family"]) for task in tasks])
    shares = {name: number_or_nan(estimate[name]) for name in ("low", "value", "high")}
    if not 0 <= shares["low"] <= shares["value"] <= shares["high"] <= 1:
        raise ValueError(f"pass@1 {estimate['value']!s:.20}: must be in [0, 1], within its interval")
    differences = [*benchmark.differences, f"temperature {float(about['temperature']):g}"]
    if result["rollouts"] < result["wanted"]:
        differences.append(f"incomplete: {result['rollouts']} of {result['wanted']} rollouts")
    return Score(
        model=_policy(about),
        identity=json.dumps([about["policy"], about["weights"]], sort_keys=True),
        benchmark=Benchmark(name=benchmark.name, differences=tuple(differences)),
        **shares,
        tasks=int(estimate["tasks"]),
        trials=max((int(task["samples"]) + int(task["infrastructure_failures"]) for task in tasks), default=0),
        lost=int(result["infrastructure_failures"]),
        source=folder,
    )


def _policy(about: Mapping[str, Any]) -> str:
    policy, weights = about["policy"], about["weights"]
    name = _model(policy["remote"]) if policy.get("remote") else str(policy["path"])
    if isinstance(weights, Mapping):
        return f"{name}, run {weights['run_key']} after {weights['iteration']} iterations"
    return name


def _add_study(folder: Path, scores: list[Score], unreadable: list[Unreadable]) -> None:
    """Adds the last evaluation of each arm with usable runs, over all seeds."""
    try:
        study = load_study(folder, interventions=False)
    except StudyError as error:
        unreadable.append(Unreadable(source=folder, reason=str(error)))
        return
    for arm in summarize(study).arms:
        try:
            scores += _arm_scores(study, arm)
        except DAMAGE as error:
            unreadable.append(Unreadable(source=folder, reason=f"{arm.arm}: {_reason(error)}"))
    unusable = [f"{row['run_key']} {row['state']}" for row in records(study.runs) if not row["usable"]]
    if unusable:
        more = f" and {len(unusable) - NAMED_RUNS} more" if len(unusable) > NAMED_RUNS else ""
        reason = f"{len(unusable)} of {len(study.runs)} runs have no score: {', '.join(unusable[:NAMED_RUNS])}{more}"
        unreadable.append(Unreadable(source=folder, reason=reason))


def _arm_scores(study: Study, arm: ArmSummary) -> list[Score]:
    """
    Raises:
        one of DAMAGE: a run's config is damaged.
    """
    estimate = arm.passes[1]
    if estimate is None or math.isnan(estimate.value):
        return []
    rows = at_last(select(heldout(study), arm=arm.arm))
    directory = Path(str(select(study.usable_runs, arm=arm.arm)["directory"].iloc[0]))
    config = load_yaml(read_text(directory / "config.yaml"))
    benchmark = benchmark_of(config["env"], sorted(set(rows["family"].astype(str))))
    sampling = (f"temperature {number_or_nan(config['eval']['temperature']):g}", f"seeds: {estimate.seeds}")
    return [
        Score(
            model=f"{config['policy'].get('path')}, {study.name}: {arm.arm}, {_method(config)}",
            identity=f"{study.path} {arm.arm}",
            benchmark=Benchmark(name=benchmark.name, differences=(*benchmark.differences, *sampling)),
            value=estimate.value,
            low=estimate.low,
            high=estimate.high,
            tasks=estimate.tasks,
            trials=int(rows["samples"].to_numpy().max()),
            lost=None,
            source=study.path,
        )
    ]


def _method(config: Mapping[str, Any]) -> str:
    """RTI if the run could intervene, otherwise the algorithm's name."""
    algorithm = str(config["algorithm"]["_target_"]).rpartition(".")[2]
    closed = number_or_nan(config["gate"]["delta"]) < 1
    if algorithm == "GRPO" and not closed and config["corrector"]["_target_"] is not None:
        return "RTI"
    return algorithm
