"""Which weights a checkpoint keeps: all, or of a model that is mostly frozen (adapters) those that are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def kept_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's state dict, or its trained part if some of its parameters are frozen."""
    state = model.state_dict(keep_vars=True)  # one walk over the modules, which are many
    parameters = [value for value in state.values() if isinstance(value, nn.Parameter)]
    if all(parameter.requires_grad for parameter in parameters):
        return {name: _alone(value) for name, value in state.items()}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: _alone(value) for name, value in state.items() if name in trained}


def _alone(value: Any) -> Any:
    """A tensor without its history; what else a module may keep (`get_extra_state`) as it is."""
    return value.detach() if isinstance(value, Tensor) else value


def restore_weights(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """The inverse of `kept_weights`, in place.

    Raises:
        ValueError: `state` was kept of a model with other trained weights; names some of them.
    """
    wanted = set(kept_weights(model))
    if wanted != set(state):
        differing = sorted(wanted ^ set(state))
        raise ValueError(
            f"the weights are another model's: {', '.join(differing[:3])} and {len(differing)} in all differ"
        )
    model.load_state_dict(dict(state), strict=wanted == set(model.state_dict()))
