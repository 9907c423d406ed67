"""Weights of another precision for the time of a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class CastWeight(nn.Parameter):
    """What a layer has in place of its weight meanwhile."""


def casts_left(model: nn.Module) -> bool:
    """Whether a signal in the middle of putting the weights back has left the model without some of its own."""
    return any(isinstance(parameter, CastWeight) for parameter in model.parameters())


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
                module._parameters["weight"] = CastWeight(module.weight.detach().to(dtype), requires_grad=False)
        yield
    finally:
        for module, weight in replaced:
            module._parameters["weight"] = weight  # pyright: ignore[reportArgumentType]
