"""Log-probs of chosen tokens, from their logits, or by a head without the logits of all positions at once.

With N trained positions and a vocabulary of V, logits and their gradient are 2 N V floats. In chunks of positions the
logits are computed twice, forward and backward, and never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNKED_FROM = 16384
"""Smaller vocabularies are not chunked."""
CHUNK_VALUES = 2**24
"""Logits of one chunk. It changes memory, and the result by rounding only."""


def over_temperature(logits_NV: Tensor, temperature: float) -> Tensor:
    """Logits whose softmax is the distribution that samples at `temperature`; at 1 they are the same tensor."""
    return logits_NV if temperature == 1 else logits_NV / temperature


def at_temperatures(logits_NV: Tensor, temperatures: Sequence[float]) -> Tensor:
    """As `over_temperature`, with a temperature for each row."""
    if all(temperature == 1 for temperature in temperatures):
        return logits_NV
    return logits_NV / torch.tensor(temperatures, dtype=logits_NV.dtype, device=logits_NV.device)[:, None]


def can_be_chunked(head: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether `head` is a plain linear layer with a large vocabulary, its weights whole in this process."""
    if type(head) is not nn.Linear or head._forward_hooks:
        return False
    return head.out_features >= CHUNKED_FROM and type(head.weight.data) is Tensor


def chunked_log_probs(
    head: nn.Linear, hidden_ND: Tensor, targets_N: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target, with gradient to `hidden_ND` and the head, and the distribution's entropy, without.

    Args:
        hidden_ND: hidden states before the head.
        targets_N: token ids.
        temperature: the logits are divided by it.

    Returns:
        Two float32 tensors [N], in nats.
    """
    log_probs_N, entropy_N = _ChunkedLogProbs.apply(  # pyright: ignore[reportGeneralTypeIssues]
        hidden_ND, head.weight, head.bias, targets_N, temperature
    )
    return log_probs_N, entropy_N


def _rows(vocabulary: int) -> int:
    return max(1, CHUNK_VALUES // vocabulary)


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        normalizers, chosen, entropies = [], [], []
        ctx.dtype, ctx.temperature = hidden_ND.dtype, temperature
        for hidden_CD, targets_C in _chunks(hidden_ND, targets_N, len(weight_VD)):
            logits_CV = functional.linear(hidden_CD, weight_VD, bias_V)
            ctx.dtype = logits_CV.dtype  # autocast's, if it is on
            logits_CV = over_temperature(logits_CV.float(), temperature)
            normalizer_C = logits_CV.logsumexp(dim=1)
            chosen.append(logits_CV.gather(1, targets_C[:, None])[:, 0] - normalizer_C)
            normalizers.append(normalizer_C)
            logits_CV -= normalizer_C[:, None]
            # A probability of 0 contributes 0, not 0 * -inf.
            products_CV = logits_CV.exp().mul_(logits_CV.clamp_(min=torch.finfo(torch.float32).min))
            entropies.append(-products_CV.sum(dim=1))
        empty = hidden_ND.new_zeros(0, dtype=torch.float32)
        log_probs_N, entropy_N = torch.cat([empty, *chosen]), torch.cat([empty, *entropies])
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, torch.cat([empty, *normalizers]))
        ctx.mark_non_differentiable(entropy_N)
        return log_probs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient_N = gradients[0]
        hidden_ND, weight_VD, bias_V, targets_N, normalizer_N = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        weight = weight_VD.to(ctx.dtype)
        hidden_gradient = torch.empty_like(hidden_ND) if wants_hidden else None
        weight_gradient = torch.zeros_like(weight_VD, dtype=torch.float32) if wants_weight else None
        bias_gradient = torch.zeros_like(bias_V, dtype=torch.float32) if wants_bias else None
        rows = _rows(len(weight_VD))
        for start in range(0, len(hidden_ND), rows):
            part = slice(start, start + rows)
            hidden_CD = hidden_ND[part].to(ctx.dtype)
            logits_CV = functional.linear(hidden_CD, weight, None if bias_V is None else bias_V.to(ctx.dtype)).float()
            logits_CV = over_temperature(logits_CV, ctx.temperature)
            # d log p(target) / d logits = onehot(target) - softmax
            logits_CV -= normalizer_N[part, None]
            logits_CV.exp_().mul_(-gradient_N[part, None])
            logits_CV.scatter_add_(1, targets_N[part, None], gradient_N[part, None].float())
            logits_CV = over_temperature(logits_CV, ctx.temperature)
            if bias_gradient is not None:
                bias_gradient += logits_CV.sum(dim=0)
            logits_CV = logits_CV.to(ctx.dtype)
            if hidden_gradient is not None:
                hidden_gradient[part] = logits_CV @ weight
            if weight_gradient is not None:
                weight_gradient.addmm_(logits_CV.T.float(), hidden_CD.float())
        return (
            hidden_gradient,
            None if weight_gradient is None else weight_gradient.to(weight_VD.dtype),
            None if bias_gradient is None else bias_gradient.to(bias_V.dtype),  # pyright: ignore[reportOptionalMemberAccess]
            None,
            None,
        )


def _chunks(hidden_ND: Tensor, targets_N: Tensor, vocabulary: int) -> list[tuple[Tensor, Tensor]]:
    rows = _rows(vocabulary)
    return [(hidden_ND[at : at + rows], targets_N[at : at + rows]) for at in range(0, len(hidden_ND), rows)]


def chosen_log_probs(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of each target, with gradient, and the distribution's entropy, without; [N] each, in nats."""
    log_probs_NV = logits_NV.log_softmax(dim=1)
    with torch.no_grad():
        probabilities_NV = log_probs_NV.exp()
        # A probability of 0 contributes 0, not 0 * -inf.
        probabilities_NV *= log_probs_NV.clamp(min=torch.finfo(log_probs_NV.dtype).min)
        entropy_N = -probabilities_NV.sum(dim=1)
    return log_probs_NV.gather(1, targets_N[:, None])[:, 0], entropy_N
