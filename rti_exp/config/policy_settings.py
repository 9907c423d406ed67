"""Settings of the policy's group: which model, in which arithmetic, what of it is trained, how it is spoken to."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Literal, get_args

from rti_exp.config.chat_settings import CHAT_AT_FIRST, ChatSettings
from rti_exp.config.fields import FinitePositive, Natural, Nonblank, OutOfKeyAt, settings_class
from rti_exp.config.settings import SettingsError

LORA_INSTALL = "pip install 'rti-exp[lora]'"
Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES = get_args(Dtype)


@settings_class
class LoraSettings:
    """Low-rank adapters (extra `lora`)."""

    rank: Natural
    """0 trains all weights."""
    alpha: FinitePositive
    """The adapter's output is scaled by alpha / rank."""
    targets: Annotated[str, Nonblank]
    """"all-linear" (all but the head), or a regular expression for the full names of modules that get an adapter."""


@settings_class
class PolicySettings:
    """`path` takes every form of `rti_exp.config.model_files`. Code that comes with a model is never run."""

    path: str
    dtype: Dtype
    gradient_checkpointing: Annotated[bool, OutOfKeyAt(False)]
    """Recompute each layer in the backward pass: less memory, a third more time."""
    lora: Annotated[LoraSettings, OutOfKeyAt({"rank": 0, "alpha": 32.0, "targets": "all-linear"})]
    chat: Annotated[ChatSettings, OutOfKeyAt(CHAT_AT_FIRST)]
    """For models with a chat template; the embedded policies have a format of their own."""


def check_lora(settings: LoraSettings) -> None:
    """That adapters can be made, if they are asked for.

    Raises:
        SettingsError: adapters are asked for and peft is not installed.
    """
    if settings.rank and importlib.util.find_spec("peft") is None:
        raise SettingsError(f"policy.lora.rank={settings.rank}: needs the package peft: {LORA_INSTALL}")
