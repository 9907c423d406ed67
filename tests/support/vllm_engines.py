"""`VllmEngine`s with a stand-in for vLLM (tests/support/fake_vllm); PYTHONPATH must contain `FAKE_VLLM`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from rti_exp.config.defaults import default_settings
from rti_exp.config.engine_settings import VllmEngineSettings
from rti_exp.engines.base import GenerateRequest, Sampling
from rti_exp.engines.vllm.engine import VllmEngine
from tests.support.fakes import tiny_model

FAKE_VLLM = Path(__file__).parent / "fake_vllm"


def vllm_engine(**options: Any) -> VllmEngine:
    defaults = dataclasses.asdict(default_settings(VllmEngineSettings))  # pyright: ignore[reportArgumentType]
    model = options.pop("model", None) or tiny_model()
    return VllmEngine(model, **{**defaults, "max_difference": math.inf, "max_context": 64, **options})


def request(first: int = 5, *, seed: int = 3, tokens: int = 4, **options: Any) -> GenerateRequest:
    sampling = Sampling(max_tokens=tokens, stop_ids=(2,))
    return GenerateRequest(prompt_ids=(first, 6, 7), sampling=sampling, seed=seed, **options)
