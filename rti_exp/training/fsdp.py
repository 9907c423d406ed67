"""Training with weights, gradients and optimizer state sharded over processes (FSDP2).

Rollouts are ragged: each process decodes as long as its own episodes last. Sharded layers gather their weights in
every forward pass, in which all processes have to take part. So each process keeps the engine's model whole, for
rollouts and scores, and trains a sharded copy of it, from which the whole one is filled after each optimizer step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from rti_exp.training.batch import Batch
from rti_exp.training.token_log_probs import TokenLogProbs, TrainedPositions


class ShardedPolicy:
    """The sharded copy of `whole`, and its forward pass.

    Each decoder layer is a unit; embeddings, last norm and head are the root's.

    Args:
        whole: the engine's model; its weights are overwritten by `fill`.
        mesh: one-dimensional, over the processes that share the weights.
        temperature: the rollouts'.
    """

    def __init__(self, whole: PreTrainedModel, mesh: DeviceMesh, temperature: float = 1.0) -> None:
        self.whole = whole
        self.model = copy.deepcopy(whole)
        positions = TrainedPositions(self.model, temperature)  # before sharding: it calls the model once
        layers: Any = self.model.get_decoder().layers
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

        def trained_positions(model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
            found = positions(batch)
            return found.log_probs_BT, found.entropy_BT

        # The root's forward would compute all logits; this one is as good a forward pass to FSDP.
        self.model.trained_positions = MethodType(trained_positions, self.model)  # pyright: ignore
        register_fsdp_forward_method(self.model, "trained_positions")

    @property
    def packs(self) -> bool:
        """Never: a sharded model is called as it is (`rti_exp.training.token_log_probs.TrainedPositions.packs`)."""
        return False

    def __call__(self, batch: Batch) -> TokenLogProbs:
        log_probs_BT, entropy_BT = self.model.trained_positions(batch)  # pyright: ignore[reportCallIssue]
        return TokenLogProbs(log_probs_BT=log_probs_BT, entropy_BT=entropy_BT)

    @torch.no_grad()
    def fill(self) -> None:
        """The trained weights into the whole model; every process must call it."""
        for part, target in zip(self.model.parameters(), self.whole.parameters(), strict=True):
            target.copy_(whole_tensor(part))


def whole_tensor(value: Tensor) -> Tensor:
    """The whole of a sharded tensor, on every process; others as they are."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def gathered(tree: Any) -> Any:
    """A state dict with whole tensors, on the CPU, in place of sharded ones; every process must call it."""
    if isinstance(tree, DTensor):
        return tree.full_tensor().cpu()
    if isinstance(tree, Mapping):
        return {key: gathered(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [gathered(value) for value in tree]
    return tree


def sharded_like(value: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor as its parameter is sharded, if it has the parameter's shape (a step count has not)."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)


def sharded_state(
    state: Mapping[str, Any], model: PreTrainedModel, parameters: list[torch.nn.Parameter]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Model and optimizer state of a checkpoint, which are whole, as the model is sharded.

    Args:
        parameters: The optimizer's, in its order.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    weights = {
        name: sharded_like(value, named[name]) if name in named else value for name, value in state["model"].items()
    }
    optimizer = dict(state["optimizer"])
    optimizer["state"] = {
        index: {key: sharded_like(value, parameters[index]) for key, value in moments.items()}
        for index, moments in optimizer["state"].items()
    }
    return weights, optimizer


def idle_batch(total_trained_tokens: int) -> Batch:
    """A micro-batch without a trained token: a process that has no more of its own takes part in others' with it."""
    ones_BT = torch.ones((1, 2))
    return Batch(
        token_ids_BT=torch.zeros((1, 2), dtype=torch.long),
        loss_mask_BT=torch.zeros((1, 2), dtype=torch.bool),
        behaviour_log_probs_BT=torch.zeros((1, 2)),
        advantages_BT=torch.zeros((1, 2)),
        weights_BT=ones_BT,
        authors_BT=torch.zeros((1, 2), dtype=torch.uint8),
        lengths_B=torch.tensor([2]),
        total_trained_tokens=total_trained_tokens,
    )
