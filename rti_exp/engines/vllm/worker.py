"""The process that holds vLLM: `PYTHON worker.py`, where PYTHON has vLLM. It needs nothing of this package.

It reads one JSON object per line from stdin, and writes one answer per line to the original stdout (vLLM's own prints
go to stderr):

    {"call": "open", "options": {...}}         vllm.LLM(**options)                           -> {}
    {"call": "weights", "folder": FOLDER}      loads safetensors with a checkpoint's names   -> {}
    {"call": "generate", "requests": [{"prompt_ids", "temperature", "top_p", "max_tokens", "stop_ids", "seed"}]}
        -> {"completions": [{"token_ids", "log_probs"}]}   log-probs of the distribution that sampled

A call that raises is answered with {"error": ...}. The process ends when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Worker:
    """One `vllm.LLM`."""

    def __init__(self) -> None:
        self._llm: Any = None

    def open(self, options: dict[str, Any]) -> dict[str, Any]:
        from vllm import LLM  # pyright: ignore

        self._llm = LLM(**options)
        return {}

    def weights(self, folder: str) -> dict[str, Any]:
        """Replaces all weights, and drops the keys and values of the old ones."""
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
                ignore_eos=True,  # only `stop_token_ids` end a completion, not the model's own
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
    return {"token_ids": token_ids, "log_probs": log_probs}


def reload(worker: Any, folder: str) -> None:
    """Runs in each of vLLM's workers, which takes its part of each tensor."""
    worker.reload_weights(weights_iterator=_tensors(folder))


def _tensors(folder: str) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  (it is not a dict)
                yield name, stored.get_tensor(name)


def main() -> None:
    folder = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != folder]  # vLLM must not import the files next to this one
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # keep vLLM's prints out of the answers
    worker = Worker()
    calls = {"open": worker.open, "weights": worker.weights, "generate": worker.generate}
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = calls[call.pop("call")](**call)
        except Exception as error:  # the caller classifies it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
