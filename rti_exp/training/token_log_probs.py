"""Log-probs of the trained tokens of a batch, with logits at those positions only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rti_exp.models.fast_path import fast_path
from rti_exp.models.head import can_be_chunked, chosen_log_probs, chunked_log_probs, over_temperature
from rti_exp.training.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogProbs:
    """Both [B, T], 0 where nothing is trained. `log_probs_BT` has a gradient (if enabled), the entropy has none."""

    log_probs_BT: Tensor
    entropy_BT: Tensor
    """Of the whole next-token distribution, in nats."""


class TrainedPositions:
    """A forward pass of a causal language model that spends vocabulary-sized work on trained tokens only.

    Padding is on the right and there is no attention mask: a causal model's positions do not see later ones. Hidden
    states are gathered before the head, and a head with a large vocabulary is applied to one chunk of them at a time.
    If decoder and head alone do not give the model's logits (soft-capping, scaling, an architecture without these
    parts), all logits are computed and then gathered. A model with a fast path (`rti_exp.models.fast_path`) takes that.

    Args:
        temperature: the rollouts' (> 0): log-probs and entropies are those of the distribution that sampled.

    Attributes:
        gathers_hidden: whether hidden states are gathered before the head.
    """

    def __init__(self, model: PreTrainedModel, temperature: float = 1.0) -> None:
        self.model = model.eval()
        self.temperature = temperature
        parts = _decoder_and_head(model)
        self.gathers_hidden = parts is not None and _give_the_models_logits(model, *parts)
        self._parts = parts if self.gathers_hidden else None
        self._fast = fast_path(model)

    @property
    def packs(self) -> bool:
        """Whether a batch's padding costs nothing, and the common beginning of its rows is computed once."""
        return self._fast is not None and self._fast.applies()

    def __call__(self, batch: Batch) -> TokenLogProbs:
        rows_N, columns_N = batch.loss_mask_BT.nonzero(as_tuple=True)
        log_probs_N, entropy_N = self._log_probs(batch, rows_N, columns_N)
        zeros_BT = torch.zeros(batch.loss_mask_BT.shape, dtype=log_probs_N.dtype, device=log_probs_N.device)
        return TokenLogProbs(
            log_probs_BT=zeros_BT.index_put((rows_N, columns_N), log_probs_N),
            entropy_BT=zeros_BT.index_put((rows_N, columns_N), entropy_N),
        )

    def _log_probs(self, batch: Batch, rows_N: Tensor, columns_N: Tensor) -> tuple[Tensor, Tensor]:
        targets_N = batch.token_ids_BT[rows_N, columns_N]
        if self._fast is not None and self._fast.applies():
            lengths = (batch.lengths_B - 1).tolist()
            rows = [row[:length] for row, length in zip(batch.token_ids_BT.tolist(), lengths, strict=True)]
            return self._fast.update.log_probs(rows, rows_N, columns_N - 1, targets_N, self.temperature)
        token_ids_BT = batch.token_ids_BT[:, :-1]
        if self._parts is None:
            logits_NV = self.model(input_ids=token_ids_BT, use_cache=False).logits[rows_N, columns_N - 1]
            return chosen_log_probs(over_temperature(_at_least_float(logits_NV), self.temperature), targets_N)
        decoder, head = self._parts
        hidden_ND = decoder(input_ids=token_ids_BT, use_cache=False).last_hidden_state[rows_N, columns_N - 1]
        if can_be_chunked(head):
            return chunked_log_probs(head, hidden_ND, targets_N, self.temperature)
        logits_NV = over_temperature(_at_least_float(head(hidden_ND)), self.temperature)
        return chosen_log_probs(logits_NV, targets_N)


def _at_least_float(logits_NV: Tensor) -> Tensor:
    return logits_NV.float() if logits_NV.dtype in (torch.float16, torch.bfloat16) else logits_NV


def _decoder_and_head(model: PreTrainedModel) -> tuple[nn.Module, nn.Module] | None:
    try:
        decoder, head = model.get_decoder(), model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    if decoder is None or decoder is model or head is None:
        return None
    return decoder, head


@torch.no_grad()
def _give_the_models_logits(model: PreTrainedModel, decoder: nn.Module, head: nn.Module) -> bool:
    """Checked on three tokens, since no attribute says whether a model does more than decoder and head."""
    ids_BT = torch.tensor([[1, 2, 3]], device=model.device) % model.config.get_text_config().vocab_size
    expected_BTV = model(input_ids=ids_BT, use_cache=False).logits
    hidden_BTD = getattr(decoder(input_ids=ids_BT, use_cache=False), "last_hidden_state", None)
    if hidden_BTD is None or hidden_BTD.shape[-1] != getattr(head, "in_features", None):
        return False
    return torch.allclose(head(hidden_BTD), expected_BTV, rtol=1e-4, atol=1e-5)
