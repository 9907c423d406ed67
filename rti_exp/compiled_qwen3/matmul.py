"""Float32 matmuls by oneDNN, which ships with torch.

torch's own float32 matmul is MKL's, which does not use AVX-512 on AMD processors. oneDNN takes less than half the time
there, at float32 precision. It compiles a matmul for each shape, so callers round row counts up (`padded`). torch for
Apple silicon comes without oneDNN. Neither function has a gradient: both are called inside steps of autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_ONEDNN = torch.backends.mkldnn.is_available()


def padded(values_N: Tensor, *, least: int, parts: int) -> Tensor:
    """`values_N` with zeros behind: up to a multiple of `least`, or of a power of two of at most N / `parts`.

    oneDNN keeps half a megabyte for each shape, so that shapes should repeat.
    """
    count = len(values_N)
    step = max(least, 2 ** (count.bit_length() - 1) // parts)
    return functional.pad(values_N, (*(0, 0) * (values_N.ndim - 1), 0, -count % step))


def times_transposed(left_NK: Tensor, right_CK: Tensor) -> Tensor:
    """left @ right^T, [N, C]."""
    if not _ONEDNN:
        return left_NK @ right_CK.T
    return torch.ops.mkldnn._linear_pointwise(left_NK, right_CK, None, "none", [], "")


def transposed_times(left_NC: Tensor, right_NK: Tensor) -> Tensor:
    """left^T @ right, [C, K]: the gradient of a weight from the gradients of N outputs and from the inputs."""
    if not _ONEDNN:
        return left_NC.T @ right_NK
    weight_CK = left_NC.new_empty((left_NC.shape[1], right_NK.shape[1]))
    parts = (left_NC.to_mkldnn(), right_NK.to_mkldnn(), weight_CK.to_mkldnn())
    return torch.ops.aten.mkldnn_linear_backward_weights(*parts, False)[0].to_dense()
