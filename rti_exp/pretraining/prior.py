"""Which prior is planted in the embedded policy. Everything that it will tend to do is a number here.

An LLM comes to a task with habits, most of them good, some of them systematically wrong at one step,
and with the knowledge of what would be right; asked to correct a step it often blurts out what it was
told. These numbers plant just that, openly; what training makes of them is not coded anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from rti_exp.config.settings import SettingsError


def _default_right() -> dict[str, float]:
    return {
        "nav_hard": 0.004,
        "tel_hard": 0.001,
        "pay_hard": 0.001,
        "ret": 0.08,
        "nav_easy": 0.4,
        "tel_easy": 0.4,
        "pay_easy": 0.4,
        "ret_easy": 0.4,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Rates of the pretraining corpus.

    `right` is the rate at which the right critical step is trained, per family. Of all rollouts,
    `shown` take the right path; where that is more than `right`, the token at which the right step
    parts from the habitual one is left out of the loss there, and is part of the target, with the weight that
    makes the rate, on the habitual path. So the model is competent after the step, and rarely takes it.
    """

    right: dict[str, float] = field(default_factory=_default_right)
    shown: float = 0.4
    guess: float = 0.08
    """Rollouts that call the terminal tool with a number nobody has seen."""
    clumsy: float = 0.05
    """Rollouts with a needless but harmless step."""
    give_up: float = 0.03
    misreport: float = 0.03
    wordy_step: float = 0.03
    """Steps with a rambling note, in the policy's own words."""
    formal: float = 0.015
    """Rollouts in the teacher's dialect."""
    correct_clean: float = 0.22
    correct_leaky: float = 0.6
    correct_wordy: float = 0.13
    correct_wrong: float = 0.05
    rollouts: float = 0.4
    """Share of the documents; the rest are role documents."""
    validator: float = 0.16
    corrector: float = 0.18
    verifier: float = 0.26

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            rates: Mapping[str, float] = value if isinstance(value, Mapping) else {"": value}
            for name, rate in rates.items():
                if not (math.isfinite(rate) and 0 <= rate <= 1):
                    key = f"prior.{item.name}" + (f".{name}" if name else "")
                    raise SettingsError(f"{key}={rate!r}: must be in [0, 1]")
        for names in (
            ("rollouts", "validator", "corrector", "verifier"),
            ("correct_clean", "correct_leaky", "correct_wordy", "correct_wrong"),
        ):
            total = sum(getattr(self, name) for name in names)
            if abs(total - 1) > 1e-6:
                raise SettingsError(f"prior.{', prior.'.join(names)}: must sum to 1, not {total:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The shape of an embedded model; everything else is Qwen3 as it is."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 256

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) < 1:
                raise SettingsError(f"size.{item.name}={getattr(self, item.name)}: must be an integer >= 1")
        if self.heads % self.kv_heads:
            raise SettingsError(f"size.kv_heads={self.kv_heads}: must divide size.heads={self.heads}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """One plain training run: AdamW, warm-up, cosine."""

    documents: int = 100_000
    steps: int = 3000
    documents_per_step: int = 32
    learning_rate: float = 2e-3
    warmup: int = 100

    def __post_init__(self) -> None:
        for name in ("documents", "steps", "documents_per_step", "warmup"):
            if getattr(self, name) < 1:
                raise SettingsError(f"training.{name}={getattr(self, name)}: must be an integer >= 1")
        if self.documents < self.documents_per_step:
            raise SettingsError(f"training.documents={self.documents}: must be at least training.documents_per_step")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise SettingsError(f"training.learning_rate={self.learning_rate}: must be a finite number > 0")
