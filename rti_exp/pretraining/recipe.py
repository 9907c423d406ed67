"""The settings of pretraining: the prior that is planted in the embedded policy, model sizes and training runs.

An LLM comes to a task with habits, most of them good and some systematically wrong at one step, and with the knowledge
of the right step. When it is asked to correct a step, it often repeats what the rubric told it. The prior plants
exactly that, openly: every tendency is a number here. The effect of RL on these tendencies is not coded anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.group_settings import PromptSettings
from rti_exp.config.settings import SettingsError, require_at_least

EMBEDDED_MODELS = ("tiny", "teacher")
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("32-true", "bf16-mixed")


def _default_right() -> dict[str, float]:
    hard = {"nav_hard": 0.004, "tel_hard": 0.001, "pay_hard": 0.001, "ret": 0.08}
    return {**hard, "nav_easy": 0.4, "tel_easy": 0.4, "pay_easy": 0.4, "ret_easy": 0.4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Rates of the pretraining corpus.

    `right` is the rate, per family, at which the right critical step is trained. `shown` is the share of rollouts on
    the right path. If it is higher than `right`, the token at which the right step differs from the habitual one is
    excluded from the loss on the right path; on the habitual path it is part of the target, with the weight that gives
    the rate. So the model is competent after the step, and rarely takes it.
    """

    right: dict[str, float] = field(default_factory=_default_right)
    shown: float = 0.4
    guess: float = 0.08
    """Rollouts that call the terminal tool with an unseen number."""
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
    """Share of rollouts among the documents; the rest are role documents."""
    validator: float = 0.16
    corrector: float = 0.18
    verifier: float = 0.26

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            rates: Mapping[str, float] = value if isinstance(value, Mapping) else {"": value}
            for name, rate in rates.items():
                key = f"prior.{item.name}" + (f".{name}" if name else "")
                _check(math.isfinite(rate) and 0 <= rate <= 1, key, rate, "in [0, 1]")
        for names in (
            ("rollouts", "validator", "corrector", "verifier"),
            ("correct_clean", "correct_leaky", "correct_wordy", "correct_wrong"),
        ):
            total = sum(getattr(self, name) for name in names)
            if abs(total - 1) > 1e-6:
                raise SettingsError(f"prior.{', prior.'.join(names)}: must sum to 1, not {total:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The shape of an embedded model. Everything else is standard Qwen3."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 256

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            _check(value >= 1, f"size.{item.name}", value, "an integer >= 1")
        _check(self.heads % self.kv_heads == 0, "size.kv_heads", self.kv_heads, f"a divisor of size.heads={self.heads}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """One supervised training run: AdamW with warm-up and cosine decay."""

    documents: int = 100_000
    steps: int = 3000
    documents_per_step: int = 32
    learning_rate: float = 2e-3
    warmup: int = 100

    def __post_init__(self) -> None:
        for name in ("documents", "steps", "documents_per_step", "warmup"):
            value = getattr(self, name)
            _check(value >= 1, f"training.{name}", value, "an integer >= 1")
        enough = self.documents >= self.documents_per_step
        _check(enough, "training.documents", self.documents, "at least training.documents_per_step")
        positive = math.isfinite(self.learning_rate) and self.learning_rate > 0
        _check(positive, "training.learning_rate", self.learning_rate, "a finite number > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSettings:
    right: float = 0.88
    """Share of right corrections and rollouts in the teacher's corpus."""
    size: ModelSize = field(default_factory=ModelSize)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        _check(0 <= self.right <= 1, "teacher.right", self.right, "in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmstartSettings:
    """conf/warmstart.yaml: the embedded policy and its teacher, trained from random weights."""

    seed: int = 0
    out: str = "policies"
    overwrite: bool = False
    models: list[str] = field(default_factory=lambda: list(EMBEDDED_MODELS))
    vocab_size: int = 960
    threads: int = 1
    prior: Prior = field(default_factory=Prior)
    prompts: PromptSettings = field(default_factory=PromptSettings)
    size: ModelSize = field(default_factory=ModelSize)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)

    def __post_init__(self) -> None:
        named = bool(self.models) and set(self.models) <= set(EMBEDDED_MODELS)
        _check(named, "models", list(self.models), f"a non-empty list from {list(EMBEDDED_MODELS)}")
        _check(self.vocab_size >= 700, "vocab_size", self.vocab_size, "at least 700 (bytes, names, numbers, calls)")
        require_at_least(self, threads=1, seed=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningSettings:
    """conf/finetune.yaml: a language model, fine-tuned on the town."""

    seed: int = 0
    out: str = "policies/smollm2"
    overwrite: bool = False
    device: str = "auto"
    precision: str = "32-true"
    threads: int = 1
    save_every: int = 25
    """Steps between two saves of the progress to `<out>.partial`. The same command resumes from there."""
    chat: ChatSettings = field(default_factory=ChatSettings)
    prior: Prior = field(default_factory=Prior)
    prompts: PromptSettings = field(default_factory=PromptSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        _check(self.device in DEVICES, "device", self.device, f"one of {', '.join(DEVICES)}")
        _check(self.precision in PRECISIONS, "precision", self.precision, f"one of {', '.join(PRECISIONS)}")
        require_at_least(self, threads=1, save_every=1, seed=0)


def _check(valid: bool, key: str, value: object, requirement: str) -> None:
    if not valid:
        raise SettingsError(f"{key}={value!r}: must be {requirement}")
