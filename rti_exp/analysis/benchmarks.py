"""What a user has measured on benchmarks: evaluations (`rti_exp.evaluate`) and runs, found in folders.

An environment's config tells which column of the article's table it is a figure for, and in what it differs from
the article's evaluation, as far as that is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rti_exp.analysis.interventions import number_or_nan
from rti_exp.analysis.reading import Study, StudyError, load_study, select
from rti_exp.analysis.summary import ArmSummary, at_last, heldout, summarize

NAVIGATION, TELECOM, RETAIL, AIRLINE, CLAW = "Navigation", "τ²-Telecom", "τ²-Retail", "τ²-Airline", "Claw-Eval-Hard20"
COLUMNS = (NAVIGATION, TELECOM, RETAIL, AIRLINE, CLAW)
"""Of the article's table, in its order."""
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, yaml.YAMLError)
"""What reading a folder that is not as it was written may raise."""
DEEPEST = 3
"""Folders below a given one that are looked into."""
NAMED = 5
"""Runs without a figure that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an environment's config is: a column of the article or another name, and how it differs from the article."""

    benchmark: str
    differs: tuple[str, ...] = ()

    @property
    def column(self) -> str | None:
        return self.benchmark if self.benchmark in COLUMNS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One benchmark's figure for one policy. `value`, `low`, `high` are pass@1 in [0, 1] with its 95% interval."""

    who: str
    identity: str
    """The same for figures of one policy with one set of weights."""
    place: Place
    value: float
    low: float
    high: float
    tasks: int
    trials: int
    """Samples of a task, at most."""
    lost: int | None
    """Rollouts that the infrastructure lost; None where that was not written down."""
    source: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A folder that holds an evaluation or a study, and no figure."""

    source: Path
    why: str


def place_of(env: Mapping[str, Any], families: Sequence[str] = ()) -> Place:
    """The benchmark that an environment's config stands for.

    Args:
        env: the config's node `env`.
        families: of the tasks that were evaluated.
    """
    target = str(env["_target_"]).rpartition(".")[2]
    if target == "Tau2":
        return _tau2(env)
    if target == "Mcp":
        return _mcp(env, families)
    if target == "ClawEval":
        return _claw(env)
    if target == "Bfcl":
        return Place(benchmark=f"BFCL multi-turn {env.get('category')}")
    if target == "TextWorldExpress":
        return Place(benchmark="TextWorldExpress")
    return Place(benchmark=target)


def _tau2(env: Mapping[str, Any]) -> Place:
    names = {"telecom": TELECOM, "retail": RETAIL, "airline": AIRLINE}
    benchmark = names.get(str(env.get("domain")), f"τ²-{env.get('domain')}")
    unknown = "; the article's is not known" if benchmark in COLUMNS else ""
    users = {
        "scripted": "a scripted user, easier than the benchmark's",
        "solo": "no user (solo mode)",
        "model": f"the user is played by {_model(env.get('user_model'))}{unknown}",
    }
    differs = [users.get(str(env.get("user")), f"user {env.get('user')}")]
    differs.append(f"split {env.get('heldout_split')}{unknown}")
    if env.get("only"):
        differs.append("only some tasks (env.only)")
    return Place(benchmark=benchmark, differs=tuple(differs))


def _mcp(env: Mapping[str, Any], families: Sequence[str]) -> Place:
    judge = (f"the judge is {_model(env.get('judge'))}",) if env.get("judge") else ()
    if env.get("tasks_file") == "builtin:navigation":
        return Place(benchmark=NAVIGATION, differs=("a map and tasks made here; the article's are not public", *judge))
    if families and all(name.startswith("navigation") for name in families):
        told = f"tasks of {env.get('tasks_file')}; the article's are not public"
        return Place(benchmark=NAVIGATION, differs=(told, *judge))
    return Place(benchmark=f"MCP {env.get('tasks_file')}", differs=judge)


def _claw(env: Mapping[str, Any]) -> Place:
    judge = f"the judge is {_model(env.get('judge'))}; the article's is not known" if env.get("judge") else "no judge"
    if env.get("selection") == ["hard20"]:
        return Place(benchmark=CLAW, differs=("which twenty tasks the article means is a guess", judge))
    return Place(benchmark="Claw-Eval", differs=(judge,))


def _model(node: Any) -> str:
    return str(node.get("model")) if isinstance(node, Mapping) else "a model"


def measured_in(roots: Sequence[Path]) -> tuple[list[Measured], list[Unreadable]]:
    """All figures in and below these folders, evaluations first."""
    found: list[Measured] = []
    bad: list[Unreadable] = []
    folders = list(dict.fromkeys(folder for root in roots for folder in _folders(root, DEEPEST, bad)))
    for folder in folders:
        if (folder / "about.json").is_file():
            try:
                found.append(_evaluation(folder))
            except DAMAGE as error:
                bad.append(Unreadable(source=folder, why=_why(error)))
    studies = dict.fromkeys(folder.parent for folder in folders if (folder / "status.json").is_file())
    for study in studies:
        arms, unread = _study(study)
        found += arms
        bad += unread
    return found, bad


def _folders(root: Path, depth: int, bad: list[Unreadable]) -> Iterator[Path]:
    """The folder and those in it, to a depth; one that may not be read is added to `bad`."""
    yield root
    try:
        if not depth or any((root / name).is_file() for name in ("about.json", "status.json")):
            return
        entries = [one for one in sorted(root.iterdir()) if one.is_dir() and not one.is_symlink()]
    except OSError as error:
        bad.append(Unreadable(source=root, why=_why(error)))
        return
    for entry in entries:
        if not entry.name.startswith("."):
            yield from _folders(entry, depth - 1, bad)


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{Path(str(error.filename)).name} is missing: it was not ended"
    return f"it cannot be read ({type(error).__name__}: {error!s:.80})"


def _evaluation(folder: Path) -> Measured:
    """
    Raises:
        one of DAMAGE: it was not ended, or a file is damaged.
    """
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    found, tasks = result["estimates"]["pass@1"], result["tasks"]
    place = place_of(about["env"], [str(task["family"]) for task in tasks])
    shares = {name: number_or_nan(found[name]) for name in ("low", "value", "high")}
    if not 0 <= shares["low"] <= shares["value"] <= shares["high"] <= 1:
        raise ValueError(f"pass@1 {found['value']!s:.20}: must be in [0, 1], within its interval")
    differs = [*place.differs, f"temperature {float(about['temperature']):g}"]
    if result["rollouts"] < result["wanted"]:
        differs.append(f"not whole: {result['rollouts']} of {result['wanted']} rollouts")
    return Measured(
        who=_policy(about),
        identity=json.dumps([about["policy"], about["weights"]], sort_keys=True),
        place=Place(benchmark=place.benchmark, differs=tuple(differs)),
        **shares,
        tasks=int(found["tasks"]),
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


def _study(folder: Path) -> tuple[list[Measured], list[Unreadable]]:
    """The arms of a study that have a usable run with an evaluation: their last one, over all seeds."""
    try:
        study = load_study(folder, interventions=False)
    except StudyError as error:
        return [], [Unreadable(source=folder, why=str(error))]
    made: list[Measured] = []
    bad: list[Unreadable] = []
    for arm in summarize(study).arms:
        try:
            made += _arm(study, arm)
        except DAMAGE as error:
            bad.append(Unreadable(source=folder, why=f"{arm.arm}: {_why(error)}"))
    unusable = len(study.runs) - len(study.usable_runs)
    if unusable:
        told = [f"{row['run_key']} {row['state']}" for row in study.runs.to_dict("records") if not row["usable"]]
        named = ", ".join(told[:NAMED]) + (f" and {unusable - NAMED} more" if unusable > NAMED else "")
        bad.append(Unreadable(source=folder, why=f"{unusable} of {len(study.runs)} runs have no figure: {named}"))
    return made, bad


def _arm(study: Study, arm: ArmSummary) -> list[Measured]:
    """
    Raises:
        one of DAMAGE: a run's config is not as runs write it.
    """
    found = arm.passes[1]
    if found is None or math.isnan(found.value):
        return []
    own = at_last(select(heldout(study), arm=arm.arm))
    directory = Path(str(select(study.usable_runs, arm=arm.arm)["directory"].iloc[0]))
    config = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    place = place_of(config["env"], sorted(set(own["family"].astype(str))))
    sampled = (f"temperature {number_or_nan(config['eval']['temperature']):g}", f"seeds: {found.seeds}")
    return [
        Measured(
            who=f"{config['policy'].get('path')}, {study.name}: {arm.arm}, {_method(config)}",
            identity=f"{study.path} {arm.arm}",
            place=Place(benchmark=place.benchmark, differs=(*place.differs, *sampled)),
            value=found.value,
            low=found.low,
            high=found.high,
            tasks=found.tasks,
            trials=int(own["samples"].to_numpy().max()),
            lost=None,
            source=study.path,
        )
    ]


def _method(config: Mapping[str, Any]) -> str:
    """RTI where the run could intervene, else the algorithm's name."""
    algorithm = str(config["algorithm"]["_target_"]).rpartition(".")[2]
    closed = number_or_nan(config["gate"]["delta"]) < 1
    if algorithm == "GRPO" and not closed and config["corrector"]["_target_"] is not None:
        return "RTI"
    return algorithm
