"""Settings of the algorithms beside GRPO: what `algorithm=luffy|opd|sft` have."""

from __future__ import annotations

import enum
from typing import Annotated

from annotated_types import Gt, Le

from rti_exp.config.fields import FinitePositive, Natural, NonNegative, Share, settings_class
from rti_exp.config.settings import AlgorithmSettings, Baseline, SettingsError, UpdateSettings


class BaselineMembers(enum.StrEnum):
    """Whose rewards make the baseline of a group with teacher trajectories."""

    all = "all"
    on_policy = "on_policy"


@settings_class
class LuffySettings(AlgorithmSettings):
    """GRPO's settings, and those of the teacher's trajectories."""

    teacher: str
    """A transformers folder, or `builtin:<name>`; with the policy's tokenizer."""
    n_prefix: Natural
    """Members of a group that begin with a teacher's turns; 0 is GRPO."""
    prefix_fraction: Annotated[float, Gt(0), Le(1)]
    """The share of a teacher's trajectory that is given, in turns, rounded up; the policy continues from there."""
    gamma: FinitePositive
    """Of the shaping f(p) = p / (p + gamma)."""
    baseline_members: BaselineMembers

    def __post_init__(self) -> None:
        plain = self.baseline is Baseline.mean and not self.normalize_std
        if self.baseline_members is BaselineMembers.on_policy and not plain:
            raise SettingsError(
                "baseline_members='on_policy': must be all, unless baseline=mean and normalize_std=false"
            )


@settings_class
class DistillationSettings(UpdateSettings):
    """On-policy distillation."""

    teacher: str
    """A transformers folder, or `builtin:<name>`; with the policy's tokenizer."""
    clip_low: Share
    clip_high: NonNegative


@settings_class
class ImitationSettings(UpdateSettings):
    """Supervised learning on accepted corrections."""


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
