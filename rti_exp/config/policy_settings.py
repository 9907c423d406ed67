"""Settings of the policy's group: which model, in which arithmetic, what of it is trained, how it is spoken to."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass, field

from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.settings import SettingsError

LORA_INSTALL = "pip install 'rti-exp[lora]'"
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Low-rank adapters (extra `lora`); rank 0 trains all weights."""

    rank: int = 0
    alpha: float = 32.0
    """The adapter's output is scaled by alpha / rank."""
    targets: str = "all-linear"
    """"all-linear" (but the head), or a regular expression for the full names of the modules that get an adapter."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise SettingsError(f"lora.rank={self.rank}: must be an integer >= 0 (0 trains all weights)")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise SettingsError(f"lora.alpha={self.alpha}: must be a finite number > 0")
        if not self.targets.strip():
            raise SettingsError("lora.targets='': must be all-linear, or a regular expression for module names")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """`path` takes every form of `rti_exp.config.model_files`. Code that a model brings along is never run."""

    path: str = "builtin:tiny"
    dtype: str = "float32"
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass: less memory, a third more time."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    chat: ChatSettings = field(default_factory=ChatSettings)
    """For models with a chat template; the embedded policies have a format of their own."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise SettingsError(f"policy.dtype={self.dtype!r}: must be float32, bfloat16 or float16")


def check_lora(settings: LoraSettings) -> None:
    """That adapters can be made, if they are asked for.

    Raises:
        SettingsError: adapters are asked for and peft is not installed.
    """
    if settings.rank and importlib.util.find_spec("peft") is None:
        raise SettingsError(f"policy.lora.rank={settings.rank}: needs the package peft: {LORA_INSTALL}")
