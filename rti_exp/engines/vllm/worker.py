"""The process that holds vLLM: `PYTHON worker.py`, where PYTHON has vLLM; it needs nothing of this package.

One JSON object a line on stdin, one in answer on what was stdout (vLLM's own prints go to stderr):

    {"call": "open", "options": {...}}                     vllm.LLM(**options)            -> {"version": "0.32.0"}
    {"call": "weights", "folder": FOLDER}                  its safetensors, checkpoint names  -> {}
    {"call": "generate", "requests": [{"prompt_ids", "temperature", "top_p", "max_tokens", "stop_ids", "seed"}]}
        -> {"completions": [{"token_ids", "log_probs", "stopped"}]}     log-probs at temperature 1

What raises is answered with {"error": ...}. It ends when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Sampler:
    """One `vllm.LLM`."""

    def __init__(self) -> None:
        self._llm: Any = None

    def open(self, options: dict[str, Any]) -> dict[str, Any]:
        import vllm  # pyright: ignore

        self._llm = vllm.LLM(**options)  # pyright: ignore
        return {"version": vllm.__version__}  # pyright: ignore

    def weights(self, folder: str) -> dict[str, Any]:
        """All weights anew; keys and values of the old ones are forgotten."""
        self._llm.collective_rpc(reload, args=(folder,))
        self._llm.reset_prefix_cache()
        return {}

    def generate(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        from vllm import SamplingParams  # pyright: ignore

        prompts = [{"prompt_token_ids": request["prompt_ids"]} for request in requests]
        params = [
            SamplingParams(
                temperature=request["temperature"],
                top_p=request["top_p"],
                max_tokens=request["max_tokens"],
                stop_token_ids=request["stop_ids"],
                seed=request["seed"],
                ignore_eos=True,  # the end tokens are those that were given, no model's own
                logprobs=0,  # of the sampled token alone
                detokenize=False,
            )
            for request in requests
        ]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return {"completions": [_completion(output.outputs[0]) for output in outputs]}


def _completion(output: Any) -> dict[str, Any]:
    token_ids = list(output.token_ids)
    log_probs = [step[token_id].logprob for token_id, step in zip(token_ids, output.logprobs, strict=True)]
    return {"token_ids": token_ids, "log_probs": log_probs, "stopped": output.finish_reason == "stop"}


def reload(worker: Any, folder: str) -> None:
    """Runs in each of vLLM's workers, which takes its part of each tensor."""
    worker.reload_weights(weights_iterator=_tensors(folder))


def _tensors(folder: str) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  (it is no dict)
                yield name, stored.get_tensor(name)


def main() -> None:
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]  # its files are no modules of vLLM
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what is printed must not come between the answers
    sampler = Sampler()
    calls = {"open": sampler.open, "weights": sampler.weights, "generate": sampler.generate}
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = calls[call.pop("call")](**call)
        except Exception as error:  # told to whoever asked, who classifies it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
