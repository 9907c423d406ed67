"""Whether a model is exactly transformers' Qwen3, whose layers the compiled code writes out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, Qwen3ForCausalLM
from transformers.activations import SiLUActivation
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3MLP,
    Qwen3Model,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
)

_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
_EXPECTED = {
    **dict.fromkeys(_LINEAR, nn.Linear),
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "norm"), Qwen3RMSNorm),
    **{"embed_tokens": nn.Embedding, "self_attn": Qwen3Attention, "mlp": Qwen3MLP, "rotary_emb": Qwen3RotaryEmbedding},
    **{"model": Qwen3Model, "layers": nn.ModuleList, "act_fn": SiLUActivation},
}
"""Module name -> class. The decoder layers are named by number."""


class PlainQwen3:
    """The model and the sizes that both decoders read."""

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        self._model: Any = model
        self._heads: int = config.num_attention_heads
        self._key_heads: int = config.num_key_value_heads or config.num_attention_heads
        self._width: int = config.head_dim
        self._epsilon: float = config.rms_norm_eps


def is_plain_qwen3(model: PreTrainedModel) -> bool:
    """False for another class, another rotation or attention, biases, replaced or additional modules, or hooks."""
    config: Any = model.config
    if type(model) is not Qwen3ForCausalLM or config._attn_implementation != "sdpa":
        return False
    if config.rope_parameters.get("rope_type") != "default" or set(config.layer_types) != {"full_attention"}:
        return False
    return not _has_hooks(model) and all(_is_expected(name, module) for name, module in model.named_modules() if name)


def computes_in_float32_on_one_thread(model: PreTrainedModel) -> bool:
    """Whether a forward pass of now would use one CPU thread, float32 weights and no autocast."""
    if torch.is_autocast_enabled("cpu") or torch.get_num_threads() != 1:
        return False
    return all(weight.dtype == torch.float32 and weight.device.type == "cpu" for weight in model.parameters())


def _is_expected(name: str, module: nn.Module) -> bool:
    name = name.rpartition(".")[2]
    expected = Qwen3DecoderLayer if name.isdecimal() else _EXPECTED.get(name)
    if type(module) is not expected or _has_hooks(module):
        return False
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return getattr(module, "bias", None) is None


def _has_hooks(module: nn.Module) -> bool:
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))
