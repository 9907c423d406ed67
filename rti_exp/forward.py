"""Log-probs of the trained tokens of a batch, with logits at those positions only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rti_exp.batch import Batch
from rti_exp.models.head import can_be_chunked, chunked_log_probs

ENTROPY_ROWS = 1024
"""Positions whose entropy is computed at once: a bound on memory, never the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogProbs:
    """Both [B, T], 0 where nothing is trained. `log_probs_BT` has gradient (if enabled), the entropy has not."""

    log_probs_BT: Tensor
    entropy_BT: Tensor
    """Of the whole next-token distribution, in nats."""


class TrainedPositions:
    """Forward pass of a causal language model that spends vocabulary-sized work on trained tokens only.

    Right padding and no attention mask: a causal model's positions do not see what follows them. Hidden states
    are gathered before the head, and a head with a large vocabulary is applied to a chunk of them at a time. Where
    decoder and head alone do not give the model's own logits (soft-capping, scaling, an architecture that cannot be
    taken apart), all logits are computed and then gathered.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        parts = _decoder_and_head(model)
        self.gathers_hidden = parts is not None and _gives_the_models_logits(model, *parts)
        """Whether the cheap way is in use."""
        self._parts = parts if self.gathers_hidden else None

    def __call__(self, batch: Batch) -> TokenLogProbs:
        rows_N, columns_N = batch.loss_mask_BT.nonzero(as_tuple=True)
        input_ids_BT, targets_N = batch.token_ids_BT[:, :-1], batch.token_ids_BT[rows_N, columns_N]
        if self._parts is not None and can_be_chunked(self._parts[1]):
            hidden_ND = self._hidden(self._parts[0], input_ids_BT, rows_N, columns_N - 1)
            log_probs_N, entropy_N = chunked_log_probs(cast(nn.Linear, self._parts[1]), hidden_ND, targets_N)
        else:
            logits_NV = self._logits(input_ids_BT, rows_N, columns_N - 1)
            if logits_NV.dtype in (torch.float16, torch.bfloat16):
                logits_NV = logits_NV.float()
            log_probs_N = logits_NV.gather(1, targets_N[:, None])[:, 0] - logits_NV.logsumexp(dim=1)
            entropy_N = _entropy(logits_NV)
        zeros_BT = torch.zeros(batch.loss_mask_BT.shape, dtype=log_probs_N.dtype, device=log_probs_N.device)
        return TokenLogProbs(
            log_probs_BT=zeros_BT.index_put((rows_N, columns_N), log_probs_N),
            entropy_BT=zeros_BT.index_put((rows_N, columns_N), entropy_N),
        )

    @staticmethod
    def _hidden(decoder: nn.Module, token_ids_BT: Tensor, rows_N: Tensor, columns_N: Tensor) -> Tensor:
        return decoder(input_ids=token_ids_BT, use_cache=False).last_hidden_state[rows_N, columns_N]

    def _logits(self, token_ids_BT: Tensor, rows_N: Tensor, columns_N: Tensor) -> Tensor:
        if self._parts is None:
            return self.model(input_ids=token_ids_BT, use_cache=False).logits[rows_N, columns_N]
        decoder, head = self._parts
        return head(self._hidden(decoder, token_ids_BT, rows_N, columns_N))


@torch.no_grad()
def _entropy(logits_NV: Tensor) -> Tensor:
    chunks = []
    for chunk_NV in logits_NV.split(ENTROPY_ROWS):
        log_probs_NV = chunk_NV.log_softmax(dim=1)
        products_NV = log_probs_NV.exp()
        # xlogy-like: a probability of 0 contributes 0, not 0 * -inf.
        products_NV *= log_probs_NV.clamp_(min=torch.finfo(log_probs_NV.dtype).min)
        chunks.append(-products_NV.sum(dim=1))
    return torch.cat(chunks)


def _decoder_and_head(model: PreTrainedModel) -> tuple[nn.Module, nn.Module] | None:
    try:
        decoder, head = model.get_decoder(), model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    if decoder is None or decoder is model or head is None:
        return None
    return decoder, head


@torch.no_grad()
def _gives_the_models_logits(model: PreTrainedModel, decoder: nn.Module, head: nn.Module) -> bool:
    """Tried out on three tokens, since no attribute says whether a model does more than decoder and head."""
    model.eval()
    ids_BT = torch.tensor([[1, 2, 3]], device=model.device) % model.config.get_text_config().vocab_size
    whole_BTV = model(input_ids=ids_BT, use_cache=False).logits
    hidden_BTD = getattr(decoder(input_ids=ids_BT, use_cache=False), "last_hidden_state", None)
    if hidden_BTD is None or hidden_BTD.shape[-1] != getattr(head, "in_features", None):
        return False
    return torch.allclose(head(hidden_BTD), whole_BTV, rtol=1e-4, atol=1e-5)
