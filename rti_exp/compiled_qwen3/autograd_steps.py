"""Parts of a decoder layer as single autograd steps, on rows of packed tokens.

Each is the plain formula. A single compiled step saves passes over memory: in a small model's update a third of the
time goes into norms, rotation and gates. All tensors are contiguous float32 on the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from rti_exp.compiled_qwen3 import attention_kernels, layer_kernels
from rti_exp.compiled_qwen3.matmul import times_transposed, transposed_times
from rti_exp.compiled_qwen3.packing import Packing


def normed_linear(states_ND: Tensor, weight_CD: Tensor, epsilon: float) -> Tensor:
    """x / rms(x) @ weight^T, [N, C]. The norm's own weight is multiplied into `weight_CD` by the caller."""
    return _NormedLinear.apply(states_ND, weight_CD, epsilon)  # pyright: ignore[reportReturnType]


class _NormedLinear(Function):
    @staticmethod
    def forward(ctx: Any, states_ND: Tensor, weight_CD: Tensor, epsilon: float) -> Tensor:
        normed_ND, scale_N = torch.empty_like(states_ND), states_ND.new_empty(len(states_ND))
        layer_kernels.norm(states_ND.detach().numpy(), epsilon, normed_ND.numpy(), scale_N.numpy())
        ctx.save_for_backward(normed_ND, scale_N, weight_CD)
        return times_transposed(normed_ND, weight_CD)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        normed_ND, scale_N, weight_CD = ctx.saved_tensors
        weight_gradient = transposed_times(gradients[0], normed_ND)
        states_gradient = times_transposed(gradients[0], weight_CD.T)
        layer_kernels.norm_backward(normed_ND.numpy(), scale_N.numpy(), states_gradient.numpy())
        return states_gradient, weight_gradient, None


def linear(inputs_NK: Tensor, weight_CK: Tensor, added_NC: Tensor | None = None) -> Tensor:
    """inputs @ weight^T + added, [N, C]."""
    return _Linear.apply(inputs_NK, weight_CK, added_NC)  # pyright: ignore[reportReturnType]


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, inputs_NK: Tensor, weight_CK: Tensor, added_NC: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs_NK, weight_CK)
        outputs_NC = times_transposed(inputs_NK, weight_CK)
        return outputs_NC if added_NC is None else outputs_NC.add_(added_NC)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs_NK, weight_CK = ctx.saved_tensors
        added_gradient = gradients[0] if ctx.needs_input_grad[2] else None
        inputs_gradient = times_transposed(gradients[0], weight_CK.T)
        return inputs_gradient, transposed_times(gradients[0], inputs_NK), added_gradient


def gated(gate_and_up_NF: Tensor) -> Tensor:
    """silu(first half of the columns) * second half, [N, F / 2]."""
    return _Gated.apply(gate_and_up_NF)  # pyright: ignore[reportReturnType]


class _Gated(Function):
    @staticmethod
    def forward(ctx: Any, gate_and_up_NF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_and_up_NF)
        gated_NG = gate_and_up_NF.new_empty((len(gate_and_up_NF), gate_and_up_NF.shape[1] // 2))
        layer_kernels.gate(gate_and_up_NF.detach().numpy(), gated_NG.numpy())
        return gated_NG

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gate_and_up_NF,) = ctx.saved_tensors
        gradient_NF = torch.empty_like(gate_and_up_NF)
        layer_kernels.gate_backward(
            gate_and_up_NF.detach().numpy(), gradients[0].contiguous().numpy(), gradient_NF.numpy()
        )
        return gradient_NF


def rotated_heads(heads_NAW: Tensor, weight_MW: Tensor, cos_NP: Tensor, sin_NP: Tensor, epsilon: float) -> Tensor:
    """The first M heads normed, each by its weight, and rotated; the others unchanged. [N, A, W].

    Args:
        heads_NAW: queries, keys, values; the two components of a rotated pair are W / 2 apart.
        weight_MW: norm weights of queries and keys.
        cos_NP, sin_NP: of each token's angles, P = W / 2.
        epsilon: of the norm.
    """
    return _RotatedHeads.apply(heads_NAW, weight_MW, cos_NP, sin_NP, epsilon)  # pyright: ignore[reportReturnType]


class _RotatedHeads(Function):
    @staticmethod
    def forward(
        ctx: Any, heads_NAW: Tensor, weight_MW: Tensor, cos_NP: Tensor, sin_NP: Tensor, epsilon: float
    ) -> Tensor:
        inputs = (heads_NAW, weight_MW, cos_NP, sin_NP)
        ctx.save_for_backward(*inputs)
        ctx.epsilon, rotated_NAW = epsilon, torch.empty_like(heads_NAW)
        layer_kernels.rotate(*(tensor.detach().numpy() for tensor in inputs), epsilon, rotated_NAW.numpy())
        return rotated_NAW

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        weight_MW = ctx.saved_tensors[1]
        heads_gradient, weight_gradient = gradients[0].clone(), torch.zeros_like(weight_MW)
        inputs = (tensor.detach().numpy() for tensor in ctx.saved_tensors)
        layer_kernels.rotate_backward(*inputs, ctx.epsilon, heads_gradient.numpy(), weight_gradient.numpy())
        return heads_gradient, weight_gradient, None, None, None


def packed_attention(heads_NAW: Tensor, packing: Packing, heads: int, key_heads: int) -> Tensor:
    """softmax(q k^T / sqrt(W)) v, [N, heads * W]; a token attends to itself and to earlier tokens of its row."""
    return _PackedAttention.apply(heads_NAW, packing, heads, key_heads)  # pyright: ignore[reportReturnType]


class _PackedAttention(Function):
    @staticmethod
    def forward(ctx: Any, heads_NAW: Tensor, packing: Packing, heads: int, key_heads: int) -> Tensor:
        ctx.width = heads_NAW.shape[2]
        scale = np.float32(ctx.width**-0.5)
        heads_NAW = _widened(heads_NAW)
        attended_NHW = heads_NAW.new_zeros((len(heads_NAW), heads, heads_NAW.shape[2]))
        normalizers_NH = heads_NAW.new_empty((len(heads_NAW), heads))
        ctx.settings = packing.rows_R4.numpy(), packing.tokens_P.numpy(), key_heads, scale
        attention_kernels.attend(
            heads_NAW.detach().numpy(), *ctx.settings, attended_NHW.numpy(), normalizers_NH.numpy()
        )
        ctx.save_for_backward(heads_NAW, attended_NHW, normalizers_NH)
        return attended_NHW[..., : ctx.width].flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        heads_NAW, attended_NHW, normalizers_NH = ctx.saved_tensors
        gradient_NHW = _widened(gradients[0].unflatten(1, (-1, ctx.width)))
        gradient_NAW = torch.zeros_like(heads_NAW)
        arrays = (tensor.numpy() for tensor in (attended_NHW, normalizers_NH, gradient_NHW, gradient_NAW))
        attention_kernels.attend_backward(heads_NAW.detach().numpy(), *ctx.settings, *arrays)
        return gradient_NAW[..., : ctx.width], None, None, None


def _widened(heads_NAW: Tensor) -> Tensor:
    """With zeros behind each head, up to the multiple of 32 that the kernels need."""
    missing = -heads_NAW.shape[2] % attention_kernels.WIDTH_STEP
    return functional.pad(heads_NAW, (0, missing)) if missing else heads_NAW.contiguous()


def chosen_log_probs(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of each target, with gradient, and the distribution's entropy, without; [N] each, in nats.

    Raises:
        IndexError: a target is not in the vocabulary.
    """
    return _ChosenLogProbs.apply(logits_NV, targets_N)  # pyright: ignore[reportReturnType]


class _ChosenLogProbs(Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        targets_N, vocabulary = targets_N.contiguous(), logits_NV.shape[1]
        if len(targets_N) and not 0 <= int(targets_N.min()) <= int(targets_N.max()) < vocabulary:
            raise IndexError(f"a token beyond the vocabulary of {vocabulary}")  # kernels do not check bounds
        log_probs_N, entropies_N = (logits_NV.new_empty(len(logits_NV)) for _ in range(2))
        probabilities_NV = torch.empty_like(logits_NV)
        results = (tensor.numpy() for tensor in (log_probs_N, entropies_N, probabilities_NV))
        layer_kernels.choose(logits_NV.detach().numpy(), targets_N.numpy(), *results)
        ctx.save_for_backward(probabilities_NV, targets_N)
        ctx.mark_non_differentiable(entropies_N)
        return log_probs_N, entropies_N

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        probabilities_NV, targets_N = ctx.saved_tensors
        gradient_NV = torch.empty_like(probabilities_NV)
        arrays = (probabilities_NV, targets_N, gradients[0].contiguous(), gradient_NV)
        layer_kernels.choose_backward(*(array.numpy() for array in arrays))
        return gradient_NV, None
