"""Settings of the run around its loop: study and directory, trainer, recordings, budgets, limits, the probe."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator

from rti_exp.config.fields import VOLATILE, Count, Natural, Nonblank, Positive, Share, settings_class


@settings_class
class RecorderSettings:
    every: Natural
    """Iterations between two recordings of sampled groups; 0 records none."""


@settings_class
class BudgetSettings:
    tokens: Positive
    """Tokens generated and scored, roles and teachers included, after which training ends."""
    accepted: Positive
    """Accepted corrections, after which training continues without interventions."""


@settings_class
class LimitSettings:
    """Limits on failing infrastructure. Above them the run fails, rather than train on the rest."""

    env_failures: Share
    """Share of the rollouts of an iteration or an evaluation that may be infrastructure failures."""
    role_failures: Share
    """Share of an iteration's attempts that may end without a usable answer of a role: no_verdict, no_correction,
    no_check, role_failed. Attempts of an engine that is down (role_unavailable) are not counted. 1: any."""


@settings_class
class ProbeSettings:
    """The fixed probe (`rti_exp.training.probe`)."""

    every: Natural
    """Iterations between two probes; there is always one before the first and after the last. 0: only those."""
    cases: Count
    """Corrections per family."""
    seed: Natural
    """Draws the cases. It is not the run's seed, so that all runs answer the same cases."""


@settings_class
class TrainerSettings:
    """The arguments of Lightning's Trainer. Only `precision` enters the run key."""

    accelerator: str
    devices: Count
    num_nodes: Count
    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false", "fsdp"]
    """Each process holds whole weights, which its engine generates with. fsdp (FSDP2) also shards what is trained:
    weights, gradients and optimizer state."""
    precision: Literal["32-true", "64-true", "bf16-mixed", "bf16-true"]
    """fp16 is not supported: its gradients are scaled when the learner clips them."""
    threads: Count
    """CPU threads of torch in each process. With one, figures do not depend on the machine's cores."""
    deterministic: bool


def _folder_name(study: str | None) -> str | None:
    if study is not None and not re.fullmatch(r"[^\s./\\][^/\\\0\n]{0,119}", study):
        raise ValueError("a plain folder name of at most 120 characters")
    return study


def _expanded(folder: str) -> str:
    return os.path.expanduser(folder)


@settings_class
class TopSettings:
    """The keys that belong to no group and cannot change the result of a run."""

    study: Annotated[str | None, AfterValidator(_folder_name), VOLATILE]
    runs_root: Annotated[str, Nonblank, AfterValidator(_expanded), VOLATILE]
    fresh: Annotated[bool, VOLATILE]
    checkpoint_every: Annotated[Count, VOLATILE]
    """Iterations between two checkpoints; a kill costs at most as many."""
    size: Annotated[str, VOLATILE]

    def study_or(self, default: str) -> str:
        return study_name(self.study, default, self.size)


def study_name(study: str | None, default: str, size: str) -> str:
    """The study's name; without one, `default` with the size where that is not full.

    A quick look must not overwrite the tables of the whole study. Where sizes are swept they share a study.
    """
    if study is not None:
        return study
    if size == "full" or "size" in default.split("+"):
        return default
    return f"{default}-{re.sub(r'[^A-Za-z0-9_-]', '-', size)[:30]}"
