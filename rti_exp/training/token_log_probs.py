"""Log-probs of the trained tokens of a batch, with logits at those positions only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rti_exp.compiled_qwen3.architecture import is_plain_qwen3
from rti_exp.compiled_qwen3.compilation import falling_back
from rti_exp.compiled_qwen3.fused import linear
from rti_exp.compiled_qwen3.packed_decoder import PackedDecoder, padded
from rti_exp.compiled_qwen3.packing import pack
from rti_exp.models.head import can_be_chunked, chosen_log_probs, chunked_log_probs
from rti_exp.training.batch import Batch

PACKED_BYTES = 2**28
"""Larger models are called as they are: the packed decoder makes a second copy of most weights, for a micro-batch."""
ROUNDING = 1e-4
"""The packed decoder is taken if its states differ from the model's by no more than this part of the largest."""


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

    A small plain Qwen3 in float32 on the CPU is trained without padding, and what rows have in common is computed once
    (`packs`). Whether that gives what the model gives is tried out first.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        parts = _decoder_and_head(model)
        self.gathers_hidden = parts is not None and _gives_the_models_logits(model, *parts)
        """Whether hidden states are gathered before the head."""
        self._parts = parts if self.gathers_hidden else None
        self._packed = self._tried_out()

    @property
    def packs(self) -> bool:
        """Whether a batch's padding costs nothing, and what its rows begin with alike is computed once."""
        return self._packed is not None and self._suits()

    def _tried_out(self) -> PackedDecoder | None:
        """On the weights that the model has at first, so that a run that is resumed decides as the unbroken one did."""
        if not self._suits():
            return None
        packed = PackedDecoder(self.model)
        for _ in range(2):  # compiled code that failed is not taken any more
            with falling_back() as works:
                works.append(_gives_the_decoders_states(self.model, packed) and self._steps_back(packed))
            if works:
                return packed if works == [True] else None
        return None

    @torch.enable_grad()
    def _steps_back(self, packed: PackedDecoder) -> bool:
        """Once backward from made-up tokens, so that all that an update takes is compiled; True."""
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        assert self._parts is not None
        if trained:
            vocabulary = self.model.config.get_text_config().vocab_size
            packing = pack([[place % vocabulary for place in range(40)]])
            logits_NV = linear(packed(packing, packing.tokens_BT[0]), cast(nn.Linear, self._parts[1]).weight)
            log_probs_N, _ = chosen_log_probs(logits_NV, packing.token_ids_N)
            torch.autograd.grad(log_probs_N.sum(), trained, allow_unused=True)
        return True

    def _suits(self) -> bool:
        """Whether the model is, now, one that can be packed."""
        if self._parts is None or self.model.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return False
        weights = list(self.model.parameters())
        small = sum(weight.numel() * weight.element_size() for weight in weights) <= PACKED_BYTES
        return small and {weight.dtype for weight in weights} == {torch.float32} and is_plain_qwen3(self.model)

    def __call__(self, batch: Batch) -> TokenLogProbs:
        rows_N, columns_N = batch.loss_mask_BT.nonzero(as_tuple=True)
        targets_N = batch.token_ids_BT[rows_N, columns_N]
        if self._parts is None:
            token_ids_BT = batch.token_ids_BT[:, :-1]
            logits_NV = self.model(input_ids=token_ids_BT, use_cache=False).logits[rows_N, columns_N - 1]
            log_probs_N, entropy_N = chosen_log_probs(_at_least_float(logits_NV), targets_N)
        else:
            packed, head = self._packed if self.packs else None, self._parts[1]
            hidden_ND = self._hidden(batch, rows_N, columns_N - 1, packed)
            if can_be_chunked(head):
                log_probs_N, entropy_N = chunked_log_probs(cast(nn.Linear, head), hidden_ND, targets_N)
            else:
                weight_VD = cast(nn.Linear, head).weight
                logits_NV = linear(hidden_ND, weight_VD) if packed else _at_least_float(head(hidden_ND))
                chosen_N = padded(targets_N) if packed else targets_N
                log_probs_N, entropy_N = (one[: len(targets_N)] for one in chosen_log_probs(logits_NV, chosen_N))
        zeros_BT = torch.zeros(batch.loss_mask_BT.shape, dtype=log_probs_N.dtype, device=log_probs_N.device)
        return TokenLogProbs(
            log_probs_BT=zeros_BT.index_put((rows_N, columns_N), log_probs_N),
            entropy_BT=zeros_BT.index_put((rows_N, columns_N), entropy_N),
        )

    def _hidden(self, batch: Batch, rows_N: Tensor, columns_N: Tensor, packed: PackedDecoder | None) -> Tensor:
        if packed is not None:
            lengths = (batch.lengths_B - 1).tolist()
            packing = pack([row[:length] for row, length in zip(batch.token_ids_BT.tolist(), lengths, strict=True)])
            chunked = self._parts is not None and can_be_chunked(self._parts[1])
            tokens_N = packing.tokens_BT[rows_N, columns_N]
            return packed(packing, tokens_N if chunked else padded(tokens_N))
        assert self._parts is not None
        token_ids_BT = batch.token_ids_BT[:, :-1]
        return self._parts[0](input_ids=token_ids_BT, use_cache=False).last_hidden_state[rows_N, columns_N]


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
def _gives_the_models_logits(model: PreTrainedModel, decoder: nn.Module, head: nn.Module) -> bool:
    """Tried out on three tokens, since no attribute says whether a model does more than decoder and head."""
    model.eval()
    ids_BT = torch.tensor([[1, 2, 3]], device=model.device) % model.config.get_text_config().vocab_size
    whole_BTV = model(input_ids=ids_BT, use_cache=False).logits
    hidden_BTD = getattr(decoder(input_ids=ids_BT, use_cache=False), "last_hidden_state", None)
    if hidden_BTD is None or hidden_BTD.shape[-1] != getattr(head, "in_features", None):
        return False
    return torch.allclose(head(hidden_BTD), whole_BTV, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def _gives_the_decoders_states(model: PreTrainedModel, packed: PackedDecoder) -> bool:
    """Tried out on rows of different lengths with a beginning in common, long and short ones."""
    vocabulary = model.config.get_text_config().vocab_size
    rows = [
        [(7 * place + number * (place > 5)) % vocabulary for place in range(130 - 37 * number)] for number in range(4)
    ]
    packing = pack(rows)
    for number, row in enumerate(rows):
        tokens_T = packing.tokens_BT[number, : len(row)]
        own_TD = model.get_decoder()(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state[0]
        if not (packed(packing, tokens_T) - own_TD).abs().max() <= ROUNDING * own_TD.abs().max():
            return False
    return True
