"""Requests to a local engine, and what a full forward pass gives for them."""

import hashlib
import json
import random
from collections.abc import Sequence

import torch
from transformers import GraniteConfig, GraniteForCausalLM, PreTrainedModel

from rti_exp.engines.base import GenerateRequest, Sampling, ScoreRequest
from rti_exp.engines.local import LocalEngine
from rti_exp.types import Completion
from tests.support.fakes import tiny_gpt2, tiny_model

VOCABULARY = 400
STOPS = (2, 5, 17, 30, 77, 123, 200, 250, 251, 302, 333)


def tiny_granite() -> GraniteForCausalLM:
    """A model that scales its logits after the head."""
    config = GraniteConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        logits_scaling=0.25,
        max_position_embeddings=512,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GraniteForCausalLM(config).eval()


MODELS = {
    "qwen3": lambda: tiny_model(sharpen=5.0),
    "eager": lambda: tiny_model(sharpen=5.0, attention="eager"),
    "gpt2": tiny_gpt2,
    "granite": tiny_granite,
}


@torch.no_grad()
def full_log_probs(model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0].float()
    positions = torch.arange(len(prompt) - 1, len(prompt) + len(tokens) - 1)
    return logits.log_softmax(dim=1)[positions, torch.tensor(tokens)].tolist()


def ids(draw: random.Random, least: int, most: int) -> tuple[int, ...]:
    return tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(least, most)))


def requests_for(
    draw: random.Random, prompts: Sequence[tuple[int, ...]], *, most: int = 15, temperature: float = 1.0
) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            prompt_ids=prompt,
            sampling=Sampling(temperature=temperature, max_tokens=draw.randint(1, most), stop_ids=STOPS),
            seed=draw.randrange(2**63),
        )
        for prompt in prompts
    ]


def conversation_calls(engine: LocalEngine, seed: int) -> list[tuple[GenerateRequest, Completion]]:
    """Ragged conversations of several turns, begun in groups, with forks from earlier turns on the way."""
    draw = random.Random(seed)
    prompts = [prompt for prompt in [ids(draw, 1, 40) for _ in range(5)] for _ in range(3)]
    history: list[tuple[GenerateRequest, Completion]] = []
    for _ in range(4):
        requests = requests_for(draw, prompts)
        completions = engine.generate(requests)
        history += zip(requests, completions, strict=True)
        prompts = [
            request.prompt_ids + completion.token_ids + ids(draw, 1, 12)
            for request, completion in zip(requests, completions, strict=True)
            if draw.random() < 0.8
        ]
        forks = draw.sample(history, 3)
        prompts += [request.prompt_ids + completion.token_ids[:1] + ids(draw, 2, 9) for request, completion in forks]
    return history


def fingerprint(engine: LocalEngine) -> str:
    """Of ids, log-probs and scores, to the bit."""
    history = conversation_calls(engine, seed=5)
    scores = engine.score([ScoreRequest(prompt_ids=r.prompt_ids, token_ids=c.token_ids) for r, c in history])
    parts = [[c.token_ids, [value.hex() for value in c.log_probs]] for _, c in history]
    text = json.dumps([parts, [[value.hex() for value in row] for row in scores]])
    return hashlib.sha256(text.encode()).hexdigest()
