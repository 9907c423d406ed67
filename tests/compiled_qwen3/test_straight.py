"""The straight decoder gives what the model gives, up to rounding, and is not taken where it would not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rti_exp.config.policy_settings import LoraSettings
from rti_exp.engines import straight
from rti_exp.engines.base import GenerateRequest, Sampling, ScoreRequest
from rti_exp.engines.local import LocalEngine
from rti_exp.engines.straight import StraightDecoder, straight_decoder
from rti_exp.models.adapters import add_lora

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


def answers(model: Any, *, taken: bool) -> list[Any]:
    """What an engine makes of ragged prompts over two turns, and of scoring."""
    engine = LocalEngine(model, compiled=False)
    if not taken:
        engine._slots._straight = None
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
    assert (engine._slots._straight is not None) is taken
    return made


def assert_alike(found: list[Any], own: list[Any]) -> None:
    """The same ids, and the same log-probs up to rounding."""
    for turn, other in zip(found[:-1], own[:-1], strict=True):
        assert [ids for ids, _ in turn] == [ids for ids, _ in other]
        for (_, log_probs), (_, expected) in zip(turn, other, strict=True):
            assert log_probs == pytest.approx(expected, abs=1e-4)
    assert found[-1] == [pytest.approx(row, abs=1e-4) for row in own[-1]]


@pytest.mark.parametrize("heads", [1, 2, 6])
def test_it_gives_what_the_model_gives(heads: int) -> None:
    """Up to two key heads a single token's attention is one matmul a row, above it is torch's."""
    model = qwen(num_key_value_heads=heads)
    assert_alike(answers(model, taken=True), answers(model, taken=False))


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_near(autocast: bool) -> None:
    model: Any = qwen(initializer_range=0.1)
    if not autocast:
        model = model.to(torch.bfloat16)
    rows = [ScoreRequest(prompt_ids=(3, 4, 5), token_ids=tuple(range(6, end))) for end in (9, 20, 40)]
    found = []
    for taken in (True, False):
        engine = LocalEngine(model, compiled=False)
        if not taken:
            engine._slots._straight = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            found.append([value for row in engine.score(rows) for value in row])
            engine.generate([GenerateRequest(prompt_ids=(3, 4, 5), sampling=Sampling(max_tokens=3), seed=0)])
        assert (engine._slots._straight is not None) is taken
    assert found[0] == pytest.approx(found[1], abs=0.1)
    exact = [value for row in LocalEngine(qwen(initializer_range=0.1), compiled=False).score(rows) for value in row]
    assert len(found[0]) == len(exact)
    assert found[0] != pytest.approx(exact, abs=1e-4)


def test_it_reads_the_weights_of_now() -> None:
    model: Any = qwen()
    before = answers(model, taken=True)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_norm.weight.mul_(3)
    after = answers(model, taken=True)
    assert after != before
    assert_alike(after, answers(model, taken=False))


@pytest.mark.parametrize("name", ["self_attn.k_norm", "self_attn.v_proj", "mlp.up_proj"])
@pytest.mark.parametrize("unseen", [False, True])
def test_an_engine_reads_the_weights_of_now(name: str, unseen: bool) -> None:
    """Also where they change behind autograd's back: `sync` says so."""
    model: Any = qwen()
    engine = LocalEngine(model, compiled=False)
    before = scored(engine)
    weight = model.model.layers[1].get_submodule(name).weight
    with torch.no_grad():
        (weight.data if unseen else weight).mul_(3)
    assert scored(engine) != pytest.approx(before, abs=1e-3)
    assert scored(engine) == own_way(model)


def test_a_single_tokens_attention_by_hand() -> None:
    """Two key heads of width 1, one query each: weights e^2 and 1 of values 10 and 20, and the hidden key's is 0."""
    queries = torch.tensor([2.0, 1.0]).view(1, 2, 1, 1)
    keys = torch.tensor([[1.0, 0.0, 9.0], [0.0, 3.0, 9.0]]).view(1, 2, 3, 1)
    values = torch.tensor([[10.0, 20.0, 99.0], [30.0, 40.0, 99.0]]).view(1, 2, 3, 1)
    mask = torch.tensor([0.0, 0.0, -torch.inf]).view(1, 1, 1, 3)
    keys, values = (part.transpose(1, 2).contiguous().transpose(1, 2) for part in (keys, values))  # as they are stored
    found = straight._single_token_attention(queries, keys, values, mask, torch.eye(2)[:, None, :, None], 1.0)
    first = (10 * math.exp(2) + 20) / (math.exp(2) + 1)
    second = (30 + 40 * math.exp(3)) / (1 + math.exp(3))
    assert found.flatten().tolist() == pytest.approx([first, second])


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
    engine = LocalEngine(model, compiled=False)
    before = scored(engine)
    assert engine._slots._straight is not None
    assert before == own_way(model)
    add_lora(model, LoraSettings(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.3)
    after = scored(engine)
    assert engine._slots._straight is None
    assert after != pytest.approx(before, abs=1e-3)
    assert after == own_way(model)


def test_modules_and_hooks_that_come_after_the_first_call_are_computed() -> None:
    model: Any = qwen()
    engine = LocalEngine(model, compiled=False)
    plain = scored(engine)
    handle = model.model.layers[2].mlp.register_forward_hook(lambda _module, _inputs, output: output + 1)
    hooked = scored(engine)
    assert hooked != pytest.approx(plain, abs=1e-3)
    assert hooked == own_way(model)
    assert engine._slots._straight is None
    handle.remove()
    assert scored(engine) == plain
    assert engine._slots._straight is not None
    model.model.norm = LouderNorm(model.model.norm)
    assert scored(engine) == own_way(model)
    assert engine._slots._straight is None


def test_a_hook_on_the_model_itself_is_called() -> None:
    model: Any = qwen()
    engine = LocalEngine(model, compiled=False)
    scored(engine)
    calls: list[object] = []
    model.register_forward_pre_hook(lambda module, _inputs: calls.append(module))
    scored(engine)
    assert calls == [model] * len(calls) != []


def test_a_difference_is_noticed() -> None:
    """A change that the straight decoder knows nothing of is seen when it is tried out."""
    model: Any = qwen()
    block = model.model.layers[2].mlp
    own = block.forward
    block.forward = lambda hidden: own(hidden) + 1
    engine = LocalEngine(model, compiled=False)
    assert engine._slots._straight is None
    found = engine.score([ScoreRequest(prompt_ids=(3, 4), token_ids=(5, 6))])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[3, 4, 5, 6]])).logits[0].log_softmax(dim=1)
    assert found[0] == pytest.approx([logits[1, 5].item(), logits[2, 6].item()], abs=1e-5)


def test_what_training_makes_of_the_weights_changes_no_path() -> None:
    model: Any = qwen()
    engine = LocalEngine(model, compiled=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(30)
    engine.sync(1)
    scored(engine)
    assert engine._slots._straight is not None
