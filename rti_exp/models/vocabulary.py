"""Models whose head has more rows than the tokenizer has ids: the surplus ids decode to nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

MASKED = -1e4
"""A logit whose probability is 0 in float32, and which every dtype holds."""


def remove_ids_without_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Makes ids without a token impossible: sampler and learner see the same model, and normalise over the same ids.

    Rows behind the last token are cut off, as Qwen3's padding of the vocabulary to a round number. Gaps between tokens
    get a constant logit.
    """
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Module)
    ids = set(tokenizer.get_vocab().values())
    rows = len(model.get_input_embeddings().weight)  # pyright: ignore[reportArgumentType]
    if rows > max(ids) + 1:
        model.resize_token_embeddings(max(ids) + 1)
        head = model.get_output_embeddings()
    gaps = sorted(set(range(min(rows, max(ids) + 1))) - ids)
    if gaps:
        gaps_G = torch.tensor(gaps)

        def mask(_module: nn.Module, _inputs: object, logits: Tensor) -> Tensor:
            return logits.index_fill(-1, gaps_G.to(logits.device), MASKED)

        assert isinstance(head, nn.Module)
        head.register_forward_hook(mask)
