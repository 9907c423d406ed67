"""A whole config as typed objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rti_exp.config.job_settings import (
    BudgetSettings,
    LimitSettings,
    RecorderSettings,
    TopSettings,
    TrainerSettings,
)
from rti_exp.config.policy_settings import PolicySettings
from rti_exp.config.role_settings import PromptSettings
from rti_exp.config.settings import (
    EvaluationSettings,
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RolloutSettings,
    RunSettings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A replaceable object: the class to make (None: no object), and its checked options."""

    target: str | None
    options: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole config, checked. `plain` is the same as JSON-able data, normalised; `key` its identity."""

    top: TopSettings
    run: RunSettings
    rollout: RolloutSettings
    evaluation: EvaluationSettings
    algorithm: Part
    gate: GateSettings | Part
    """A `Part` for a gate from another package, named by `gate._target_`."""
    reweight: ReweightSettings
    intervention: InterventionSettings
    prompts: PromptSettings
    recorder: RecorderSettings
    budget: BudgetSettings
    limits: LimitSettings
    trainer: TrainerSettings
    policy: PolicySettings
    engine: Part
    env: Part
    env_timeout: float | None
    """Seconds that one call into the environment may take; None: it runs in this process, unbounded."""
    validator: Part
    corrector: Part
    verifier: Part
    probe: Part
    logger: Part
    plain: dict[str, Any]
    key: str

    def directory(self, study: str) -> Path:
        return Path(self.top.runs_root) / study / self.key
