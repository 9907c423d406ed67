"""Stands in for vLLM in the worker's process: the calls that the worker makes, and a model of one number.

Each request is continued by the id `10 + seed % 10` and by its first stop id, if it has one. Log-probs are -1 minus the
mean of the squared head. The prompt's first id can cause a fault: 366 ends the process, 367 sleeps, 368 raises, 369
gives log-probs that are not finite, 370 creates MARK and ends the process, or answers if MARK exists.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class SamplingParams(SimpleNamespace):
    pass


class LLM:
    def __init__(self, **options: Any) -> None:
        print("a line that is not an answer")
        assert (Path(options["model"]) / "config.json").is_file()
        if options.get("raises"):
            raise ValueError("no such option")
        self.options = options
        self.head: float | None = None
        self.cached = True

    def collective_rpc(self, method: Any, args: tuple[Any, ...]) -> None:
        method(self, *args)

    def reload_weights(self, *, weights_iterator: Any) -> None:
        weights = dict(weights_iterator)
        self.head = float(weights["lm_head.weight"].float().square().mean())
        self.cached = True

    def reset_prefix_cache(self) -> None:
        self.cached = False

    def generate(self, prompts: list[Any], params: list[SamplingParams], *, use_tqdm: bool) -> list[Any]:
        assert self.head is not None
        assert self.cached is False
        return [self._one(prompt["prompt_token_ids"], one) for prompt, one in zip(prompts, params, strict=True)]

    def _one(self, prompt_ids: list[int], params: SamplingParams) -> Any:
        fault = prompt_ids[0]
        mark = Path(os.environ.get("MARK", "/nonexistent"))
        if fault == 366 or (fault == 370 and not mark.exists()):
            mark.touch() if fault == 370 else None
            print("out of everything", flush=True)
            os.abort()
        if fault == 367:
            time.sleep(60)
        if fault == 368:
            raise RuntimeError("bad prompt")
        assert self.head is not None
        log_prob = float("nan") if fault == 369 else -1.0 - self.head
        ids = [10 + params.seed % 10] * (params.max_tokens - bool(params.stop_token_ids)) + params.stop_token_ids[:1]
        steps = [{token_id: SimpleNamespace(logprob=log_prob)} for token_id in ids]
        reason = "stop" if params.stop_token_ids else "length"
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, logprobs=steps, finish_reason=reason)])
