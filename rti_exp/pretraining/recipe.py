"""The settings of pretraining: the prior that is planted in the embedded policy, model sizes and training runs.

An LLM comes to a task with habits, most of them good and some systematically wrong at one step, and with the knowledge
of the right step. When it is asked to correct a step, it often repeats what the rubric told it. The prior plants
exactly that, openly: every tendency is a number here. The effect of RL on these tendencies is not coded anywhere.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge
from pydantic import AfterValidator

from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.defaults import settings_at
from rti_exp.config.fields import Count, FinitePositive, Natural, Share, settings_class
from rti_exp.config.role_settings import PromptSettings
from rti_exp.config.settings import SettingsError

EMBEDDED_MODELS = ("tiny", "teacher")


@settings_class
class Prior:
    """Rates of the pretraining corpus.

    `right` is the rate, per family, at which the right critical step is trained. `shown` is the share of rollouts on
    the right path. If it is higher than `right`, the token at which the right step differs from the habitual one is
    excluded from the loss on the right path; on the habitual path it is part of the target, with the weight that gives
    the rate. So the model is competent after the step, and rarely takes it.
    """

    right: dict[str, Share]
    shown: Share
    guess: Share
    """Rollouts that call the terminal tool with an unseen number."""
    clumsy: Share
    """Rollouts with a needless but harmless step."""
    give_up: Share
    misreport: Share
    wordy_step: Share
    """Steps with a rambling note, in the policy's own words."""
    formal: Share
    """Rollouts in the teacher's dialect."""
    correct_clean: Share
    correct_leaky: Share
    correct_wordy: Share
    correct_wrong: Share
    rollouts: Share
    """Share of rollouts among the documents; the rest are role documents."""
    validator: Share
    corrector: Share
    verifier: Share

    def __post_init__(self) -> None:
        for names in (
            ("rollouts", "validator", "corrector", "verifier"),
            ("correct_clean", "correct_leaky", "correct_wordy", "correct_wrong"),
        ):
            total = sum(getattr(self, name) for name in names)
            if abs(total - 1) > 1e-6:
                raise SettingsError(f"{', '.join(names)}: must sum to 1, not {total:g}")


def default_prior(**changes: Any) -> Prior:
    """The prior of conf/warmstart.yaml, with `changes`."""
    return settings_at(Prior, "", "prior", root="warmstart", **changes)


@settings_class
class ModelSize:
    """The shape of an embedded model. Everything else is standard Qwen3."""

    hidden: Count
    layers: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate: Count

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise SettingsError(f"kv_heads={self.kv_heads}: must be a divisor of heads={self.heads}")


@settings_class
class TrainingSettings:
    """One supervised training run: AdamW with warm-up and cosine decay."""

    documents: Count
    steps: Count
    documents_per_step: Count
    learning_rate: FinitePositive
    warmup: Count

    def __post_init__(self) -> None:
        if self.documents < self.documents_per_step:
            raise SettingsError(
                f"documents={self.documents}: must be at least documents_per_step={self.documents_per_step}"
            )


@settings_class
class TeacherSettings:
    right: Share
    """Share of right corrections and rollouts in the teacher's corpus."""
    size: ModelSize
    training: TrainingSettings


def _not_empty(models: list[str]) -> list[str]:
    if not models:
        raise ValueError(f"a non-empty list from {list(EMBEDDED_MODELS)}")
    return models


@settings_class
class WarmstartSettings:
    """conf/warmstart.yaml: the embedded policy and its teacher, trained from random weights."""

    seed: Natural
    out: str
    overwrite: bool
    models: Annotated[list[Literal["tiny", "teacher"]], AfterValidator(_not_empty)]
    vocab_size: Annotated[int, Ge(700)]
    """At least the bytes, names, numbers and calls."""
    threads: Count
    prior: Prior
    prompts: PromptSettings
    size: ModelSize
    training: TrainingSettings
    teacher: TeacherSettings


@settings_class
class FineTuningSettings:
    """conf/finetune.yaml: a language model, fine-tuned on the town."""

    seed: Natural
    out: str
    overwrite: bool
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["32-true", "bf16-mixed"]
    threads: Count
    save_every: Count
    """Steps between two saves of the progress to `<out>.partial`. The same command resumes from there."""
    chat: ChatSettings
    prior: Prior
    prompts: PromptSettings
    training: TrainingSettings
