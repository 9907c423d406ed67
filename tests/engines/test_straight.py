"""The straight decoder gives the model's own bits, and is not taken where it would not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rti_exp.engines.base import GenerateRequest, Sampling, ScoreRequest
from rti_exp.engines.local import LocalEngine
from rti_exp.engines.straight import StraightDecoder, straight_decoder
from rti_exp.models.adapters import add_lora
from rti_exp.models.settings import LoraSettings

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.3,  # sharp: a wrong position or mask is seen
}


def qwen(**changes: Any) -> Qwen3ForCausalLM:
    torch.manual_seed(1)
    model = Qwen3ForCausalLM(Qwen3Config(**{**SIZES, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms: all ones after construction
                parameter.uniform_(0.5, 1.5)
    return model


def answers(model: Any, *, straight: bool) -> list[Any]:
    """What an engine makes of ragged prompts over two turns, and of scoring."""
    engine = LocalEngine(model)
    if not straight:
        engine._forward._straight = None
    prompts = [tuple(range(3, 3 + length)) for length in (4, 9, 17, 30)]
    sampling = Sampling(max_tokens=6)
    made: list[Any] = []
    for turn in range(2):
        requests = [
            GenerateRequest(prompt_ids=one, sampling=sampling, seed=turn + 7 * n) for n, one in enumerate(prompts)
        ]
        completions = engine.generate(requests)
        made.append([(one.token_ids, one.log_probs) for one in completions])
        prompts = [one + done.token_ids + (5, 6, 7) for one, done in zip(prompts, completions, strict=True)]
    made.append(engine.score([ScoreRequest(prompt_ids=one, token_ids=(9, 8, 7, 6)) for one in prompts]))
    assert (engine._forward._straight is not None) is straight
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [2, 6])
def test_the_same_bits(dtype: torch.dtype, heads: int) -> None:
    model: Any = qwen(num_key_value_heads=heads).to(dtype)  # pyright: ignore[reportArgumentType]
    assert answers(model, straight=True) == answers(model, straight=False)


def test_the_same_bits_under_autocast() -> None:
    model = qwen()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = answers(model, straight=True)
        assert found == answers(model, straight=False)
    assert found != answers(model, straight=True)


def test_it_reads_the_weights_of_now() -> None:
    model: Any = qwen()
    before = answers(model, straight=True)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_norm.weight.mul_(3)
    after = answers(model, straight=True)
    assert after != before
    assert after == answers(model, straight=False)


class LouderNorm(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return 2 * self.norm(states)


def test_other_models_are_left_alone() -> None:
    llama = LlamaForCausalLM(LlamaConfig(**{**SIZES, "head_dim": 8, "num_attention_heads": 6}))
    biased = qwen(attention_bias=True)
    stretched = qwen(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})
    replaced: Any = qwen()
    replaced.model.norm = LouderNorm(replaced.model.norm)
    assert [straight_decoder(model) for model in (llama, biased, stretched, replaced)] == [None] * 4
    assert isinstance(straight_decoder(qwen()), StraightDecoder)


def scored(engine: LocalEngine) -> tuple[float, ...]:
    engine.sync(engine.policy_version + 1)
    return engine.score([ScoreRequest(prompt_ids=(3, 4), token_ids=(5, 6))])[0]


def own_way(model: Any) -> Any:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[3, 4, 5, 6]])).logits[0].log_softmax(dim=1)
    return pytest.approx([logits[1, 5].item(), logits[2, 6].item()], abs=1e-5)


def test_adapters_that_come_after_the_engine_are_computed() -> None:
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model: Any = qwen()
    engine = LocalEngine(model)
    before = scored(engine)
    assert engine._forward._straight is not None
    assert before == own_way(model)
    add_lora(model, LoraSettings(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.3)
    after = scored(engine)
    assert engine._forward._straight is None
    assert after != pytest.approx(before, abs=1e-3)
    assert after == own_way(model)


def test_modules_and_hooks_that_come_after_the_first_call_are_computed() -> None:
    model: Any = qwen()
    engine = LocalEngine(model)
    plain = scored(engine)
    handle = model.model.layers[2].mlp.register_forward_hook(lambda _module, _inputs, output: output + 1)
    hooked = scored(engine)
    assert hooked != pytest.approx(plain, abs=1e-3)
    assert hooked == own_way(model)
    assert engine._forward._straight is None
    handle.remove()
    assert scored(engine) == plain
    assert engine._forward._straight is not None
    model.model.norm = LouderNorm(model.model.norm)
    assert scored(engine) == own_way(model)
    assert engine._forward._straight is None


def test_a_hook_on_the_model_itself_is_called() -> None:
    model: Any = qwen()
    engine = LocalEngine(model)
    scored(engine)
    calls: list[object] = []
    model.register_forward_pre_hook(lambda module, _inputs: calls.append(module))
    scored(engine)
    assert calls == [model] * len(calls) != []


def test_a_differing_bit_is_noticed() -> None:
    """A change that the straight decoder knows nothing of: the first call shows it; the model's own way is taken."""
    model: Any = qwen()
    block = model.model.layers[2].mlp
    own = block.forward
    block.forward = lambda hidden: own(hidden) + 1
    engine = LocalEngine(model)
    assert engine._forward._straight is not None
    request = ScoreRequest(prompt_ids=(3, 4), token_ids=(5, 6))
    found = engine.score([request])
    assert engine._forward._straight is None
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[3, 4, 5, 6]])).logits[0].log_softmax(dim=1)
    assert found[0] == pytest.approx([logits[1, 5].item(), logits[2, 6].item()], abs=1e-5)
