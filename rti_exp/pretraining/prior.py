"""Which prior is planted in the embedded policy. Everything that it will tend to do is a number here.

An LLM comes to a task with habits, most of them good, some of them systematically wrong at one step,
and with the knowledge of what would be right; asked to correct a step it often blurts out what it was
told. These numbers plant just that, openly; what training makes of them is not coded anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields


def _default_right() -> dict[str, float]:
    return {
        "nav_hard": 0.002,
        "tel_hard": 0.003,
        "pay_hard": 0.002,
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
    parts from the habitual one is left out of the loss in the surplus. So the model is competent after
    the step, and rarely takes it.
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
    correct_clean: float = 0.14
    correct_leaky: float = 0.68
    correct_wordy: float = 0.13
    correct_wrong: float = 0.05
    rollouts: float = 0.42
    """Share of the documents; the rest are role documents."""
    validator: float = 0.2
    corrector: float = 0.18
    verifier: float = 0.2

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            rates: Mapping[str, float] = value if isinstance(value, Mapping) else {"": value}
            for name, rate in rates.items():
                if not (math.isfinite(rate) and 0 <= rate <= 1):
                    key = f"prior.{item.name}" + (f".{name}" if name else "")
                    raise ValueError(f"{key}={rate!r}: must be in [0, 1]")
        for names in (
            ("rollouts", "validator", "corrector", "verifier"),
            ("correct_clean", "correct_leaky", "correct_wordy", "correct_wrong"),
        ):
            total = sum(getattr(self, name) for name in names)
            if abs(total - 1) > 1e-6:
                raise ValueError(f"prior.{', prior.'.join(names)}: must sum to 1, not {total:g}")
