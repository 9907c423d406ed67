"""The settings of a run's loop: typed, and validated before any model is loaded.

`rti_exp.config.check` turns each config group into its class. An unknown key, a wrong type or a value out of range is
refused with the key's full name and the allowed range.
"""

from __future__ import annotations

import enum
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AllowInfNan

from rti_exp.config.fields import (
    Count,
    FiniteNonNegative,
    Natural,
    NonNegative,
    Positive,
    Share,
    settings_class,
)


class SettingsError(ValueError):
    """An invalid config value. The message names the key and says what would be right."""


class Baseline(enum.StrEnum):
    """What is subtracted from a reward: the group's mean, or the mean of the others (RLOO)."""

    mean = "mean"
    leave_one_out = "leave_one_out"


class Scope(enum.StrEnum):
    """Which tokens of a corrected trajectory are trained: all, from the corrected turn on, or that turn only."""

    all = "all"
    suffix = "suffix"
    turn = "turn"


class Merge(enum.StrEnum):
    """Whether a successful continuation replaces the trajectory it came from, or joins the group."""

    replace = "replace"  # pyright: ignore[reportAssignmentType]  (hides str.replace)
    append = "append"


class Scorer(enum.StrEnum):
    """Which model scores pi_cal: the policy under the correction prompt, the corrector's source, or none."""

    policy = "policy"
    source = "source"
    off = "off"


class EvidenceChoice(enum.StrEnum):
    none = "none"
    rubric = "rubric"
    reference = "reference"


@settings_class
class RolloutSettings:
    temperature: FiniteNonNegative
    top_p: Annotated[float, Gt(0), Le(1)]
    max_tokens: Count
    """Tokens one assistant turn may take."""
    max_context: Annotated[int, Ge(2)]
    """Tokens a whole trajectory may take, prompt included."""


@settings_class
class UpdateSettings:
    """What every algorithm has: which tokens are trained, in how many steps, by which optimizer."""

    scope: Scope
    updates: Count
    """Optimizer steps per iteration: the samples are split into as many mini-batches."""
    dynamic_sampling: Natural
    """Maximum rounds of fresh tasks in place of groups without signal; 0 keeps those groups."""
    learning_rate: FiniteNonNegative
    adam_beta1: Annotated[float, Ge(0), Lt(1)]
    adam_beta2: Annotated[float, Ge(0), Lt(1)]
    weight_decay: FiniteNonNegative
    gradient_clip: Positive
    """Maximum norm of the gradient; inf does not clip."""
    micro_batch_tokens: Count
    """Tokens of one forward and backward pass, padding included. Changes memory, never the result."""


@settings_class
class AlgorithmSettings(UpdateSettings):
    """GRPO and its usual variants (Dr. GRPO, RLOO, clip-higher) as settings."""

    normalize_std: bool
    baseline: Baseline
    clip_low: Share
    """1 is no lower clip."""
    clip_high: NonNegative
    """inf is no upper clip."""
    beta: FiniteNonNegative
    """Coefficient of the KL to a frozen reference; 0 keeps no reference."""
    advantage_eps: FiniteNonNegative


@settings_class
class GateSettings:
    """The perplexity gate: a correction passes iff its perplexity is at most `delta`."""

    delta: NonNegative
    """Perplexity is >= 1, so below 1 the gate never opens (exactly GRPO); inf never closes."""
    shadow: bool
    """Continue and record what the gate dropped, without training on it."""

    @property
    def never_opens(self) -> bool:
        return self.delta < 1.0


@settings_class
class ReweightSettings:
    eps_cal: Share
    """rho is clipped to [1 - eps_cal, 1 + eps_cal]; 0 is off."""
    scorer: Scorer


@settings_class
class InterventionSettings:
    max_per_group: Natural | None
    """Failed trajectories of a group to intervene on; None is half of the group, rounded down."""
    corrections: Count
    """Corrections drawn for each of them."""
    merge: Merge
    evidence: EvidenceChoice
    success_threshold: Annotated[float, AllowInfNan(False)]
    """A trajectory succeeded iff its reward is at least this."""


@settings_class
class EvaluationSettings:
    every: Natural
    """Iterations between two evaluations; there is always one before the first and after the last. 0: only those."""
    tasks: Natural
    """0 switches evaluation off."""
    samples: Count
    temperature: FiniteNonNegative


@settings_class
class RunSettings:
    """The numbers of a run that belong to no group."""

    seed: Annotated[int, Ge(0), Lt(2**32)]
    max_iterations: Annotated[int, Ge(1), Lt(2**63)]
    tasks_per_iteration: Count
    group_size: Annotated[int, Ge(2)]
    """A group of one has no baseline."""
