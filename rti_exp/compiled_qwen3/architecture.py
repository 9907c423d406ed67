"""Whether a model is just transformers' Qwen3, which is written out by hand for speed here and in the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
"""Name of a module -> its class; beside these there are the layers, by number."""


def is_plain_qwen3(model: PreTrainedModel) -> bool:
    """False for another class, rotation or attention, biases, replaced or further modules, hooks."""
    config: Any = model.config
    if type(model) is not Qwen3ForCausalLM or config._attn_implementation != "sdpa":
        return False
    if config.rope_parameters.get("rope_type") != "default" or set(config.layer_types) != {"full_attention"}:
        return False
    return not _hooks(model) and all(_expected(name, module) for name, module in model.named_modules() if name)


def _expected(name: str, module: nn.Module) -> bool:
    name = name.rpartition(".")[2]
    if type(module) is not (Qwen3DecoderLayer if name.isdecimal() else _EXPECTED.get(name)) or _hooks(module):
        return False
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return getattr(module, "bias", None) is None


class PlainQwen3:
    """What a decoder that is written out needs of the model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        config: Any = model.config
        self._heads: int = config.num_attention_heads
        self._key_heads: int = config.num_key_value_heads or config.num_attention_heads
        self._width: int = config.head_dim
        self._epsilon: float = config.rms_norm_eps


def build_of(modules: Iterable[nn.Module]) -> tuple[tuple[object, ...], ...]:
    """What a model is made of, hooks included: other than before where modules were replaced, as adapters do."""
    return tuple((id(module), type(module), _hooks(module)) for module in modules)


def _hooks(module: nn.Module) -> int:
    return (
        len(module._forward_hooks)
        + len(module._forward_pre_hooks)
        + len(module._backward_hooks)
        + len(module._backward_pre_hooks)
    )
