"""Gradient checkpointing: a layer's inner activations are computed again in the backward pass, not stored.

transformers' own does nothing in eval mode, in which all of our forward passes run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rti_exp.config.settings import SettingsError


class _Recomputed(nn.Module):
    """Goes before a layer's class: its forward, stored only by its inputs where gradients are wanted."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        return checkpoint(super().forward, *args, use_reentrant=False, **kwargs)


def recompute_layers(model: PreTrainedModel) -> None:
    """Changes the class of the model's layers, in place; their weights and names stay.

    Raises:
        SettingsError: the model has no layers that can be recomputed.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise SettingsError(
            f"policy.gradient_checkpointing=true: {type(model).__name__} has no layers that can be recomputed"
        )
    for layer in layers:
        if not isinstance(layer, _Recomputed):
            layer.__class__ = type(f"Recomputed{type(layer).__name__}", (_Recomputed, type(layer)), {})
