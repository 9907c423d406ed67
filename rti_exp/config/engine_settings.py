"""Settings of the engines: how much at a time, and where vLLM is."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rti_exp.config.group_settings import LocalEngineSettings
from rti_exp.config.policy_settings import DTYPES
from rti_exp.config.settings import SettingsError

VLLM_INSTALL = "pip install 'rti-exp[vllm]'"
VLLM = "rti_exp.engines.vllm.engine.VllmEngine"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngineSettings(LocalEngineSettings):
    """`rti_exp.engines.vllm.engine.VllmEngine`, which says what each means."""

    python: str | None = None
    max_context: int | None = None
    dtype: str = "auto"
    memory_fraction: float = 0.4
    cpu_cache_gib: int = 1
    tensor_parallel: int = 1
    devices: list[int] = field(default_factory=list)
    eager: bool = False
    timeout: float = 600.0
    importance_cap: float | None = None
    max_difference: float = 0.5
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        LocalEngineSettings.__post_init__(self)  # no super(): a dataclass with slots is another class than its body's
        for name in ("cpu_cache_gib", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise SettingsError(f"engine.{name}={getattr(self, name)}: must be an integer >= 1")
        if self.max_context is not None and self.max_context < 2:
            raise SettingsError(f"engine.max_context={self.max_context}: must be an integer >= 2, or null")
        if self.dtype not in ("auto", *DTYPES):
            raise SettingsError(f"engine.dtype={self.dtype!r}: must be auto, {', '.join(DTYPES)}")
        if not 0 < self.memory_fraction < 1:
            raise SettingsError(f"engine.memory_fraction={self.memory_fraction}: must be in (0, 1)")
        for name in ("timeout", "max_difference"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"engine.{name}={getattr(self, name)}: must be a number > 0")
        if self.importance_cap is not None and not (self.importance_cap > 0 and math.isfinite(self.importance_cap)):
            raise SettingsError(
                f"engine.importance_cap={self.importance_cap}: must be a finite number > 0, or null (off)"
            )
        if any(device < 0 for device in self.devices) or len(set(self.devices)) < len(self.devices):
            raise SettingsError(f"engine.devices={self.devices}: must be numbers of GPUs, each once")
        if self.tensor_parallel > max(1, len(self.devices)):
            raise SettingsError(
                f"engine.tensor_parallel={self.tensor_parallel}: must be at most the number of engine.devices, "
                f"{len(self.devices)}"
            )


ENGINE_SETTINGS: Mapping[str, type] = {
    "rti_exp.engines.local.LocalEngine": LocalEngineSettings,
    VLLM: VllmEngineSettings,
}
VOLATILE = ("python", "timeout", "memory_fraction", "cpu_cache_gib", "devices", "max_difference")
"""Options of vLLM that make no other run: where it is, how much it may take, when it is given up."""


def check_engine(settings: Any) -> None:
    """That vLLM is there, if it is asked for; its own start would take half a minute to say so.

    Raises:
        SettingsError: it is not.
    """
    if not isinstance(settings, VllmEngineSettings):
        return
    if settings.python is None:
        if importlib.util.find_spec("vllm") is None:
            raise SettingsError(
                f"engine=vllm: needs the package vllm: {VLLM_INSTALL}, or an interpreter of another environment that "
                "has it: engine.python=FOLDER/bin/python"
            )
        return
    found = shutil.which(os.path.expanduser(settings.python))
    if found is None:
        raise SettingsError(
            f"engine.python={settings.python!r}: must be an interpreter that has vLLM; there is none there"
        )
    question = "import importlib.util; print(importlib.util.find_spec('vllm') is not None)"
    try:
        answer = subprocess.run(
            [found, "-c", question], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        answer = f"no answer ({type(error).__name__})"
    if answer != "True":
        raise SettingsError(
            f"engine.python={settings.python!r}: must be an interpreter that has vLLM ({VLLM_INSTALL} there); "
            f"asked whether it has it, it said {answer[:60] or 'nothing'}"
        )


def without_volatile(target: str | None, node: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's node as far as it makes a run what it is."""
    return {key: value for key, value in node.items() if target != VLLM or key not in VOLATILE}
