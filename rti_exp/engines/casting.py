"""Weights of another precision for the time of a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def linear_weights_cast(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Inside, `nn.Linear` of float32 has weights of `dtype`, autocast's, which else casts them anew in each pass.

    The values are autocast's own. Weights must not be changed or trained inside. None: nothing is cast.
    """
    replaced: list[tuple[nn.Linear, torch.Tensor]] = []
    try:
        for module in model.modules() if dtype is not None else ():
            if type(module) is nn.Linear and module.weight.dtype is torch.float32:
                replaced.append((module, module.weight))
                module._parameters["weight"] = nn.Parameter(module.weight.detach().to(dtype), requires_grad=False)
        yield
    finally:
        for module, weight in replaced:
            module._parameters["weight"] = weight  # pyright: ignore[reportArgumentType]
