"""How fast the local engine generates on one core, next to the time of the bare matrix products.

    python benchmarks/generation.py

Workload: 96 episodes (12 prompts of 24 tokens, 8 members each), 4 turns of 12 tokens, tool replies of 12 tokens, on
a random Qwen3 of the tiny policy's size. The floor is the model's multiply-adds at the rate of one large fp32
matrix product on the same core; attention is not in it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from measure import matmul_rate
from transformers import Qwen3Config, Qwen3ForCausalLM

from rti_exp.engines.base import GenerateRequest, Sampling
from rti_exp.engines.local import LocalEngine
from rti_exp.engines.transformers_forward import TransformersForward
from rti_exp.experiment.parts import default_engine
from rti_exp.randomness import derive_seed

VOCABULARY = 900


def build_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        initializer_range=0.05,
    )
    return Qwen3ForCausalLM(config).eval()


class CountedSteps:
    """Counts decode steps and the time in them."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def install(self, engine: LocalEngine) -> None:
        compiled = engine._compiled
        owner: Any = TransformersForward if compiled is None else type(compiled._decoder)
        owner.next_logits = self._timed(owner.next_logits)

    def _timed(self, original: Any) -> Any:
        def timed(*args: Any) -> torch.Tensor:
            started = time.perf_counter()
            logits = original(*args)
            self.count += 1
            self.seconds += time.perf_counter() - started
            return logits

        return timed


def roll_out(engine: LocalEngine, *, tasks: int, members: int, turns: int, tokens: int, seed: int) -> None:
    draw = random.Random(seed)

    def text(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(7, VOCABULARY) for _ in range(count))

    prompts: Sequence[tuple[int, ...]] = [prompt for prompt in [text(24) for _ in range(tasks)] for _ in range(members)]
    for turn in range(turns):
        requests = [
            GenerateRequest(
                prompt_ids=prompt, sampling=Sampling(max_tokens=tokens), seed=derive_seed(seed, turn, member)
            )
            for member, prompt in enumerate(prompts)
        ]
        completions = engine.generate(requests)
        prompts = [
            prompt + completion.token_ids + text(12) for prompt, completion in zip(prompts, completions, strict=True)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda on a GPU")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model: Any = build_model()
    model.to(arguments.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    engine = default_engine(model)
    sizes = {name: getattr(arguments, name) for name in ("tasks", "members", "turns", "tokens")}
    roll_out(engine, **sizes, seed=0)
    steps = CountedSteps()
    steps.install(engine)
    seconds, processor, rates, generated, prefilled = [], [], [], 0, 0
    for repeat in range(1, arguments.repeats + 1):
        engine.sync(repeat)
        generated, prefilled = engine.generated_tokens, engine.prefilled_tokens
        started, started_processor = time.perf_counter(), time.process_time()
        roll_out(engine, **sizes, seed=repeat)
        seconds.append(time.perf_counter() - started)
        processor.append(time.process_time() - started_processor)
        generated, prefilled = engine.generated_tokens - generated, engine.prefilled_tokens - prefilled
        rates.append(matmul_rate(arguments.device))
    best = min(seconds)
    rate = max(rates)
    body = parameters - model.lm_head.weight.numel()
    floor = 2 * (generated * parameters + prefilled * body) / rate
    print("| measure | value |\n|---|---|")
    print(f"| parameters | {parameters:,} |")
    print(f"| generated / prefilled tokens | {generated:,} / {prefilled:,} |")
    print(f"| rollout, best and median of {arguments.repeats} | {best:.3f} s, {statistics.median(seconds):.3f} s |")
    print(f"| processor time of the best | {min(processor):.3f} s |")
    print(f"| generated tokens a second | {generated / best:,.0f} |")
    print(f"| forward pass of a decode step | {1000 * steps.seconds / steps.count:.2f} ms |")
    print(f"| matrix product rate | {rate / 1e9:.0f} GFLOP/s |")
    print(f"| floor of the matrix products | {floor:.3f} s |")
    print(f"| rollout over floor | {best / floor:.1f} |")


if __name__ == "__main__":
    main()
