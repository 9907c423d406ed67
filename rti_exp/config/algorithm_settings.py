"""Settings of the algorithms beside GRPO: what `algorithm=luffy|opd|sft` have."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from rti_exp.config.settings import AlgorithmSettings, Baseline, Scope, SettingsError, UpdateSettings, check_clip


class BaselineMembers(enum.StrEnum):
    """Whose rewards make the baseline of a group with teacher trajectories."""

    all = "all"
    on_policy = "on_policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LuffySettings(AlgorithmSettings):
    """GRPO's settings, and what the teacher's trajectories need."""

    normalize_std: bool = False
    clip_low: float = 1.0
    clip_high: float = math.inf
    teacher: str = "builtin:teacher"
    """A transformers folder, or `builtin:<name>`; with the policy's tokenizer."""
    n_prefix: int = 1
    """Members of a group that begin with a teacher's turns; 0 is GRPO."""
    prefix_fraction: float = 1.0
    """The share of a teacher's trajectory that is given, in turns, rounded up; the policy goes on from there."""
    gamma: float = 0.1
    """Of the shaping f(p) = p / (p + gamma)."""
    baseline_members: BaselineMembers = BaselineMembers.all

    def __post_init__(self) -> None:
        AlgorithmSettings.__post_init__(self)  # no super(): a dataclass with slots is another class than its body's
        if self.n_prefix < 0:
            raise SettingsError(f"algorithm.n_prefix={self.n_prefix}: must be an integer >= 0")
        if not 0 < self.prefix_fraction <= 1:
            raise SettingsError(f"algorithm.prefix_fraction={self.prefix_fraction}: must be in (0, 1]")
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise SettingsError(f"algorithm.gamma={self.gamma}: must be a finite number > 0")
        plain = self.baseline is Baseline.mean and not self.normalize_std
        if self.baseline_members is BaselineMembers.on_policy and not plain:
            raise SettingsError(
                "algorithm.baseline_members='on_policy': must be all, unless baseline=mean and normalize_std=false"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationSettings(UpdateSettings):
    """On-policy distillation."""

    teacher: str = "builtin:teacher"
    """A transformers folder, or `builtin:<name>`; with the policy's tokenizer."""
    clip_low: float = 0.2
    clip_high: float = 0.28

    def __post_init__(self) -> None:
        UpdateSettings.__post_init__(self)  # no super(): a dataclass with slots is another class than its body's
        check_clip(self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationSettings(UpdateSettings):
    """Supervised learning on accepted corrections, by default from the corrected turn on."""

    scope: Scope = Scope.suffix


ALGORITHM_SETTINGS: dict[str, type[UpdateSettings]] = {
    "rti_exp.objective.grpo.GRPO": AlgorithmSettings,
    "rti_exp.objective.luffy.LUFFY": LuffySettings,
    "rti_exp.objective.opd.OPD": DistillationSettings,
    "rti_exp.objective.sft.SFT": ImitationSettings,
}
"""Which settings an algorithm's class takes."""
CORRECTED = {"rti_exp.objective.sft.SFT": True, "rti_exp.objective.opd.OPD": False}
"""Algorithms that only work with a corrector (True), or only without one (False)."""


def teacher_path(settings: object) -> str | None:
    """The model that the algorithm learns from; None if there is none."""
    if isinstance(settings, LuffySettings):
        return settings.teacher if settings.n_prefix else None
    return settings.teacher if isinstance(settings, DistillationSettings) else None
