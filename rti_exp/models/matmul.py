"""Matmuls of the update by oneDNN, which torch brings along but takes for other dtypes only.

torch's own float32 matmul is MKL's, which on processors of other makers than Intel's does without their widest
instructions: there oneDNN takes less than half of the time. Both are of float32's precision. Without gradient: they are
parts of steps of autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

_FEWEST_ROWS = 16
"""Below, a call's own cost is more than what is gained."""


def rows_for(count: int, *, least: int, parts: int) -> int:
    """`count` rounded up, by a `parts`-th at most or to a multiple of `least`.

    oneDNN compiles a matmul for each shape, and keeps half a megabyte of it: shapes should come again.
    """
    step = max(least, 2 ** (count.bit_length() - 1) // parts)
    return count + -count % step


def times_transposed(left_NK: Tensor, right_CK: Tensor) -> Tensor:
    """left @ right^T, [N, C]."""
    if not _by_onednn(left_NK, right_CK):
        return left_NK @ right_CK.T
    return torch.ops.mkldnn._linear_pointwise(left_NK, right_CK, None, "none", [], "")


def transposed_times(left_NC: Tensor, right_NK: Tensor) -> Tensor:
    """left^T @ right, [C, K]: the gradient of a weight, from those of N outputs and from the inputs."""
    if not _by_onednn(left_NC, right_NK):
        return left_NC.T @ right_NK
    weight_CK = left_NC.new_empty((left_NC.shape[1], right_NK.shape[1]))
    parts = (left_NC.to_mkldnn(), right_NK.to_mkldnn(), weight_CK.to_mkldnn())
    return torch.ops.aten.mkldnn_linear_backward_weights(*parts, False)[0].to_dense()


def _by_onednn(left: Tensor, right: Tensor) -> bool:
    plain = all(
        type(one) in (Tensor, Parameter) and one.dtype is torch.float32 and one.device.type == "cpu"
        for one in (left, right)
    )
    return _ONEDNN and plain and len(left) >= _FEWEST_ROWS and right.numel() > 0


_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
