"""Settings as frozen dataclasses: typed, checked here, before any model is loaded.

`rti_exp.experiment.build` merges each config group into its class; an unknown key, a wrong type or a value out of
range is refused with the key's full name and the allowed range.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field


class SettingsError(ValueError):
    """A config value without sense; the message names the key and what would be right."""


def _check(holds: bool, key: str, value: object, wanted: str) -> None:
    if not holds:
        raise SettingsError(f"{key}={value!r}: must be {wanted}")


def require_at_least(settings: object, **least: int) -> None:
    """Raises SettingsError for the first of these keys that is less."""
    for key, value in least.items():
        given = getattr(settings, key)
        _check(given >= value, key, given, f"an integer >= {value}")


def _check_finite(key: str, value: float, *, least: float, wanted: str) -> None:
    _check(math.isfinite(value) and value >= least, key, value, wanted)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 32
    """Tokens one assistant turn may take."""
    max_context: int = 96
    """Tokens a whole trajectory may take, prompt included."""

    def __post_init__(self) -> None:
        _check_finite("rollout.temperature", self.temperature, least=0.0, wanted="a finite number >= 0")
        _check(0 < self.top_p <= 1, "rollout.top_p", self.top_p, "in (0, 1]")
        _check(self.max_tokens >= 1, "rollout.max_tokens", self.max_tokens, "an integer >= 1")
        _check(self.max_context >= 2, "rollout.max_context", self.max_context, "an integer >= 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """What every algorithm has: which tokens are trained, in how many steps, by which optimizer."""

    scope: Scope = Scope.all
    updates: int = 2
    """Optimizer steps an iteration: the samples are split into so many mini-batches."""
    dynamic_sampling: int = 0
    """Rounds of fresh tasks in place of groups without signal, at most; 0 keeps those groups."""
    learning_rate: float = 3e-4
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    micro_batch_tokens: int = 4096
    """Tokens of one forward and backward, padding included where there is any; memory only, never the result."""

    def __post_init__(self) -> None:
        _check(self.updates >= 1, "algorithm.updates", self.updates, "an integer >= 1")
        _check(self.dynamic_sampling >= 0, "algorithm.dynamic_sampling", self.dynamic_sampling, "an integer >= 0")
        _check_finite("algorithm.learning_rate", self.learning_rate, least=0.0, wanted="a finite number >= 0")
        _check(0 <= self.adam_beta1 < 1, "algorithm.adam_beta1", self.adam_beta1, "in [0, 1)")
        _check(0 <= self.adam_beta2 < 1, "algorithm.adam_beta2", self.adam_beta2, "in [0, 1)")
        _check_finite("algorithm.weight_decay", self.weight_decay, least=0.0, wanted="a finite number >= 0")
        _check(self.gradient_clip > 0, "algorithm.gradient_clip", self.gradient_clip, "a number > 0, or inf")
        _check(self.micro_batch_tokens >= 1, "algorithm.micro_batch_tokens", self.micro_batch_tokens, "an integer >= 1")


def check_clip(clip_low: float, clip_high: float) -> None:
    """
    Raises:
        SettingsError: a clip range without sense.
    """
    _check(0 <= clip_low <= 1, "algorithm.clip_low", clip_low, "in [0, 1] (1 is no lower clip)")
    _check(clip_high >= 0, "algorithm.clip_high", clip_high, "a number >= 0, or inf (no upper clip)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSettings(UpdateSettings):
    """GRPO and its usual variants (Dr. GRPO, RLOO, clip-higher) as settings."""

    normalize_std: bool = True
    baseline: Baseline = Baseline.mean
    clip_low: float = 0.2
    clip_high: float = 0.28
    beta: float = 0.0
    """Coefficient of the KL to a frozen reference; 0 keeps no reference."""
    advantage_eps: float = 1e-6

    def __post_init__(self) -> None:
        UpdateSettings.__post_init__(self)  # no super(): a dataclass with slots is another class than its body's
        check_clip(self.clip_low, self.clip_high)
        _check_finite("algorithm.beta", self.beta, least=0.0, wanted="a finite number >= 0")
        _check_finite("algorithm.advantage_eps", self.advantage_eps, least=0.0, wanted="a finite number >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """The perplexity gate: a correction passes iff its perplexity is at most `delta`."""

    delta: float = 5.0
    """Perplexity is >= 1, so below 1 the gate never opens (exactly GRPO); inf never closes."""
    shadow: bool = False
    """Continue and record what the gate dropped, without training on it."""

    def __post_init__(self) -> None:
        _check(not math.isnan(self.delta) and self.delta >= 0, "gate.delta", self.delta, "a number >= 0, or inf")

    @property
    def never_opens(self) -> bool:
        return self.delta < 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReweightSettings:
    eps_cal: float = 0.2
    """rho is clipped to [1 - eps_cal, 1 + eps_cal]; 0 is off."""
    scorer: Scorer = Scorer.policy

    def __post_init__(self) -> None:
        _check(0 <= self.eps_cal <= 1, "reweight.eps_cal", self.eps_cal, "in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionSettings:
    max_per_group: int | None = None
    """Failed trajectories of a group to intervene on; None is half of the group, rounded down."""
    corrections: int = 3
    """Corrections drawn for each of them."""
    merge: Merge = Merge.replace
    evidence: EvidenceChoice = EvidenceChoice.rubric
    success_threshold: float = 1.0
    """A trajectory succeeded iff its reward is at least this."""

    def __post_init__(self) -> None:
        _check(
            self.max_per_group is None or self.max_per_group >= 0,
            "intervention.max_per_group",
            self.max_per_group,
            "null or an integer >= 0",
        )
        _check(self.corrections >= 1, "intervention.corrections", self.corrections, "an integer >= 1")
        _check(
            math.isfinite(self.success_threshold),
            "intervention.success_threshold",
            self.success_threshold,
            "a finite number",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePrompt:
    """What is appended to a history to ask for a role's answer.

    `text` may hold {evidence} and {reason}; what is put there is data and is not read for braces.
    """

    text: str = ""
    role: str = "system"

    def __post_init__(self) -> None:
        _check(self.role in ("system", "user"), "role", self.role, '"system" or "user"')


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How a role is sampled. Its errors name the key without its group, which `typed` puts before it."""

    temperature: float = 0.0
    max_tokens: int = 16

    def __post_init__(self) -> None:
        _check_finite("temperature", self.temperature, least=0.0, wanted="a finite number >= 0")
        _check(self.max_tokens >= 1, "max_tokens", self.max_tokens, "an integer >= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings(SamplingSettings):
    """How a role that judges is asked."""

    retries: int = 1
    """Further tries, with other seeds at temperature 1, for an answer that could not be read."""
    steps_per_call: int = 8
    """Validator only: steps judged in one batch before looking whether one was harmful."""

    def __post_init__(self) -> None:
        SamplingSettings.__post_init__(self)  # no super(): a dataclass with slots is another class than its body's
        _check(self.retries >= 0, "retries", self.retries, "an integer >= 0")
        _check(self.steps_per_call >= 1, "steps_per_call", self.steps_per_call, "an integer >= 1")


CHECK_NAMES = ("gold", "leak", "plausible")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSettings:
    """Which checks are asked of the policy, and whether the deterministic leak rule joins them."""

    policy: bool = True
    rule: bool = False
    checks: list[str] = field(default_factory=lambda: list(CHECK_NAMES))

    def __post_init__(self) -> None:
        unknown = [name for name in self.checks if name not in CHECK_NAMES]
        _check(not unknown, "verifier.checks", list(self.checks), f"a list out of {list(CHECK_NAMES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    every: int = 8
    """Evaluate after every so many iterations, and before the first and after the last; 0: only those two."""
    tasks: int = 96
    samples: int = 8
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check(self.every >= 0, "eval.every", self.every, "an integer >= 0")
        _check(self.tasks >= 0, "eval.tasks", self.tasks, "an integer >= 0 (0 switches evaluation off)")
        _check(self.samples >= 1, "eval.samples", self.samples, "an integer >= 1")
        _check_finite("eval.temperature", self.temperature, least=0.0, wanted="a finite number >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The numbers of a run that belong to no group."""

    seed: int = 0
    max_iterations: int = 24
    tasks_per_iteration: int = 12
    group_size: int = 8

    def __post_init__(self) -> None:
        _check(0 <= self.seed < 2**32, "seed", self.seed, "an integer >= 0, below 2**32")
        _check(self.max_iterations >= 1, "max_iterations", self.max_iterations, "an integer >= 1")
        _check(self.max_iterations < 2**63, "max_iterations", self.max_iterations, "below 2**63")
        _check(self.tasks_per_iteration >= 1, "tasks_per_iteration", self.tasks_per_iteration, "an integer >= 1")
        _check(self.group_size >= 2, "group_size", self.group_size, "an integer >= 2 (a group of one has no baseline)")
