"""Random Qwen3 models whose output shows a wrong position, mask or norm."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.3,
}


def random_qwen3(**changes: Any) -> Any:
    """`SIZES` with changes, in eval mode, with norm weights between 0.5 and 1.5."""
    torch.manual_seed(1)
    return with_random_norms(Qwen3ForCausalLM(Qwen3Config(**{**SIZES, **changes})).eval())


def with_random_norms(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # all ones after construction
                parameter.uniform_(0.5, 1.5)
    return model
