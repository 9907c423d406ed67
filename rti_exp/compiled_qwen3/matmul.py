"""Matmuls of the update by oneDNN, which torch brings along but takes for other dtypes only.

torch's own float32 matmul is MKL's, which on processors of other makers than Intel's does without their widest
instructions: there oneDNN takes less than half of the time. Both are of float32's precision. Without gradient: they are
parts of steps of autograd.
"""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor
from torch.nn import Parameter

log = logging.getLogger(__name__)

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
    return _times_transposed(left_NK, right_CK) if _by_onednn(left_NK, right_CK) else left_NK @ right_CK.T


def transposed_times(left_NC: Tensor, right_NK: Tensor) -> Tensor:
    """left^T @ right, [C, K]: the gradient of a weight, from those of N outputs and from the inputs."""
    return _transposed_times(left_NC, right_NK) if _by_onednn(left_NC, right_NK) else left_NC.T @ right_NK


def _by_onednn(left: Tensor, right: Tensor) -> bool:
    plain = all(
        type(one) in (Tensor, Parameter) and one.dtype is torch.float32 and one.device.type == "cpu"
        for one in (left, right)
    )
    return plain and len(left) >= _FEWEST_ROWS and right.numel() > 0 and torch.backends.mkldnn.enabled and _works()


def _times_transposed(left_NK: Tensor, right_CK: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(left_NK, right_CK, None, "none", [], "")


def _transposed_times(left_NC: Tensor, right_NK: Tensor) -> Tensor:
    weight_CK = left_NC.new_empty((left_NC.shape[1], right_NK.shape[1]))
    parts = (left_NC.to_mkldnn(), right_NK.to_mkldnn(), weight_CK.to_mkldnn())
    return torch.ops.aten.mkldnn_linear_backward_weights(*parts, False)[0].to_dense()


@functools.cache
def _works() -> bool:
    """Whether both give what they should; tried out once for a process, since another torch may name them otherwise."""
    if not torch.backends.mkldnn.is_available():
        return False
    left, right = torch.tensor([[1.0, 2.0]], device="cpu"), torch.tensor([[3.0, 4.0], [5.0, 6.0]], device="cpu")
    try:
        made = [_times_transposed(left, right).tolist(), _transposed_times(left, right[:1]).tolist()]
    except (AttributeError, RuntimeError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        log.warning("oneDNN's matmuls do not work here (%s): torch's are taken instead", reason)
        return False
    return made == [[[11.0, 17.0]], [[3.0, 4.0], [6.0, 8.0]]]
