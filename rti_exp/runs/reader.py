"""Run directories as a reader sees them. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rti_exp.runs.bounded import load_yaml, read_text
from rti_exp.runs.json_lines import read_lines
from rti_exp.runs.status import read_status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run directory as a reader sees it. `status` is None where status.json is missing or torn."""

    directory: Path
    status: Mapping[str, Any] | None
    config: Mapping[str, Any]

    @property
    def state(self) -> str:
        return self.status["state"] if self.status else "missing"

    def metrics(self) -> list[dict[str, Any]]:
        return list(read_lines(self.directory / "metrics.jsonl"))

    def interventions(self) -> list[dict[str, Any]]:
        return list(read_lines(self.directory / "interventions.jsonl"))

    def rollouts(self) -> list[dict[str, Any]]:
        return list(read_lines(self.directory / "rollouts.jsonl"))


def read_config(directory: Path) -> dict[str, Any]:
    """config.yaml of a run directory; empty if it is missing or not a YAML mapping of a bounded size."""
    try:
        config = load_yaml(read_text(directory / "config.yaml"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def load_run(directory: Path) -> RunRecord:
    return RunRecord(directory=directory, status=read_status(directory), config=read_config(directory))


def load_runs(study_dir: Path) -> list[RunRecord]:
    """All run directories of a study, by name; broken ones too."""
    if not study_dir.is_dir():
        return []
    found = (path for path in sorted(study_dir.iterdir()) if path.is_dir() and not path.name.startswith("."))
    return [load_run(path) for path in found if (path / "config.yaml").exists() or (path / "status.json").exists()]
