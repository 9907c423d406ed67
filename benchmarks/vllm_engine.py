"""The vLLM engine beside the local one: speed, the time that new weights take, and how far their log-probs are apart.

    python benchmarks/vllm_engine.py --python FOLDER/bin/python [--policy builtin:tiny] [--requests 64] [--tokens 64]

`--python` is an interpreter that has vLLM. Both engines are asked the same, at temperature 1; then the weights are
changed, and both are asked again, greedily: the last row says of how many answers all tokens are the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import machine

from rti_exp.config.paths import policy_folder
from rti_exp.engines.base import GenerateRequest, Sampling
from rti_exp.engines.vllm.engine import VllmEngine
from rti_exp.experiment.parts import default_engine
from rti_exp.models.load import load

PROMPT_TOKENS = 48


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--python", default=sys.executable, help="an interpreter that has vLLM")
    arguments.add_argument("--policy", default="builtin:tiny")
    arguments.add_argument("--requests", type=int, default=64)
    arguments.add_argument("--tokens", type=int, default=64)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    model = load(policy_folder(given.policy), "float32", given=f"--policy={given.policy}").model
    local = default_engine(model, max_batch=given.requests)
    vllm = VllmEngine(
        model,
        python=given.python,
        max_batch=given.requests,
        max_context=PROMPT_TOKENS + given.tokens,
        eager=not torch.cuda.is_available(),
    )
    rows: list[tuple[str, str]] = []
    local.generate(requests(model, given, 1.0)[:1])  # neither is measured cold
    started, _ = timed(lambda: vllm.generate(requests(model, given, 1.0)[:1]))
    rows.append(("seconds until vLLM has started, been given weights and answered", f"{started:.1f}"))
    for name, engine in (("local", local), ("vLLM, its tokens scored anew", vllm)):
        engine.sync(0)
        seconds, made = timed(lambda engine=engine: engine.generate(requests(model, given, 1.0)))
        rate = sum(len(one.token_ids) for one in made) / seconds
        rows.append((f"tokens a second, {name}", f"{rate:.0f}"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.02)
    spent = vllm.weight_seconds
    answers: list[list[Any]] = []
    for engine in (local, vllm):
        engine.sync(1)
        answers.append(engine.generate(requests(model, given, 0.0)))
    rows.append(("seconds for new weights", f"{vllm.weight_seconds - spent:.2f}"))
    rows += [
        (name, f"{value:.2e}") for name, value in vllm.mismatch.metrics(weighted=False).items() if value is not None
    ]
    same = sum(one.token_ids == other.token_ids for one, other in zip(*answers, strict=True))
    rows.append(("the same greedy answers with the new weights", f"{same} of {given.requests}"))
    vllm.close()
    print(f"{machine()}; one thread here, vLLM's as it takes them\n")
    print("| | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


def requests(model: Any, given: argparse.Namespace, temperature: float) -> list[GenerateRequest]:
    """Prompts of random ids; no end token, so that each answer has all of its tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, model.config.vocab_size, (given.requests, PROMPT_TOKENS), generator=generator).tolist()
    sampling = Sampling(temperature=temperature, max_tokens=given.tokens)
    return [GenerateRequest(prompt_ids=tuple(row), sampling=sampling, seed=seed) for seed, row in enumerate(ids)]


def timed(work: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


if __name__ == "__main__":
    main()
