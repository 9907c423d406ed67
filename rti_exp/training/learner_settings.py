"""The settings that the learner reads."""

from __future__ import annotations

from dataclasses import dataclass

from rti_exp.config.job_settings import BudgetSettings, LimitSettings
from rti_exp.config.settings import RunSettings, UpdateSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    run: RunSettings
    update: UpdateSettings
    temperature: float
    """The rollouts': the learner's log-probs are those of the distribution that sampled."""
    success_threshold: float
    """A trajectory succeeded iff its reward is at least this."""
    budget: BudgetSettings
    limits: LimitSettings
