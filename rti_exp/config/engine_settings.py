"""Settings of the engines: how much at a time, and where vLLM is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt

from rti_exp.config.fields import VOLATILE, Count, FinitePositive, Natural, Positive, settings_class
from rti_exp.config.policy_settings import Dtype
from rti_exp.config.settings import SettingsError

VLLM_INSTALL = "pip install 'rti-exp[vllm]'"
VLLM = "rti_exp.engines.vllm.engine.VllmEngine"


@settings_class
class LocalEngineSettings:
    """Memory of `rti_exp.engines.local.LocalEngine`, which says what each means."""

    max_batch: Count
    cache_rows: Count
    prefill_tokens: Count


@settings_class
class VllmEngineSettings(LocalEngineSettings):
    """`rti_exp.engines.vllm.engine.VllmEngine`, which says what each means."""

    python: Annotated[str | None, VOLATILE]
    max_context: Annotated[int, Ge(2)] | None
    dtype: Literal["auto"] | Dtype
    memory_fraction: Annotated[float, Gt(0), Lt(1), VOLATILE]
    cpu_cache_gib: Annotated[Count, VOLATILE]
    tensor_parallel: Count
    devices: Annotated[list[Natural], VOLATILE]
    eager: bool
    timeout: Annotated[Positive, VOLATILE]
    importance_cap: FinitePositive | None
    max_difference: Annotated[Positive, VOLATILE]
    options: dict[str, Any]

    def __post_init__(self) -> None:
        if len(set(self.devices)) < len(self.devices):
            raise SettingsError(f"devices={self.devices}: must be numbers of GPUs, each once")
        if self.tensor_parallel > max(1, len(self.devices)):
            raise SettingsError(
                f"tensor_parallel={self.tensor_parallel}: must be at most the number of engine.devices, "
                f"{len(self.devices)}"
            )


ENGINE_SETTINGS: Mapping[str, type] = {
    "rti_exp.engines.local.LocalEngine": LocalEngineSettings,
    VLLM: VllmEngineSettings,
}


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
