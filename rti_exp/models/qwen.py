"""Whether a model is just transformers' Qwen3, which is written out by hand for speed here and in the engine."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel, Qwen3ForCausalLM


def is_plain_qwen3(model: PreTrainedModel) -> bool:
    """False for another class, rotation or attention, biases, replaced modules, hooks."""
    config: Any = model.config
    if type(model) is not Qwen3ForCausalLM or config._attn_implementation != "sdpa" or config.attention_bias:
        return False
    if config.rope_parameters.get("rope_type") != "default" or config.hidden_act != "silu":
        return False
    known = ("transformers.", "torch.nn.modules.")
    plain = all(type(module).__module__.startswith(known) for module in model.modules())
    return plain and not any(_hooks(module) for module in model.modules())


def build_of(model: PreTrainedModel) -> tuple[tuple[object, ...], ...]:
    """What a model is made of, hooks included: other than before where modules were replaced, as adapters do."""
    return tuple((id(module), type(module), _hooks(module)) for module in model.modules())


def _hooks(module: nn.Module) -> int:
    return (
        len(module._forward_hooks)
        + len(module._forward_pre_hooks)
        + len(module._backward_hooks)
        + len(module._backward_pre_hooks)
    )
