"""The weights that are trained: the engine's own model, or under FSDP2 a sharded copy of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from transformers import PreTrainedModel

from rti_exp.models.weights import kept_weights, restore_weights
from rti_exp.training.batch import Batch
from rti_exp.training.distributed import max_over_ranks
from rti_exp.training.fsdp import ShardedPolicy, gathered, idle_batch, sharded_state
from rti_exp.training.token_log_probs import TokenLogProbs, TrainedPositions


class TrainedPolicy(Protocol):
    """What the learner needs of the policy's weights."""

    model: PreTrainedModel
    """The module whose parameters the optimizer steps."""
    sharded: bool
    """Whether each process holds a part of the weights, so that `state` is a collective call."""

    @property
    def packs(self) -> bool:
        """Whether a forward pass over a batch computes no padding."""
        ...

    def log_probs(self, batch: Batch) -> TokenLogProbs: ...

    def balanced(self, batches: list[Batch], total_trained_tokens: int) -> list[Batch]:
        """As many micro-batches as each rank has to run; collective if `sharded`."""
        ...

    def publish(self) -> None:
        """Makes the trained weights the engine's; collective if `sharded`."""
        ...

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Model and optimizer state as whole tensors and plain values."""
        ...

    def restore(self, state: Mapping[str, Any], optimizer: Optimizer) -> None:
        """The inverse of `state`, in place."""
        ...


class WholePolicy:
    """Trains the engine's own model."""

    sharded = False

    def __init__(self, model: PreTrainedModel, temperature: float) -> None:
        self.model = model
        self._forward = TrainedPositions(model, temperature)

    @property
    def packs(self) -> bool:
        return self._forward.packs

    def log_probs(self, batch: Batch) -> TokenLogProbs:
        return self._forward(batch)

    def balanced(self, batches: list[Batch], total_trained_tokens: int) -> list[Batch]:
        return batches

    def publish(self) -> None:
        """The engine's model is the trained one."""

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        return {"model": kept_weights(self.model), "optimizer": optimizer.state_dict()}

    def restore(self, state: Mapping[str, Any], optimizer: Optimizer) -> None:
        restore_weights(self.model, state["model"])
        _load_optimizer(optimizer, state["optimizer"])


class FSDPPolicy:
    """Trains a sharded copy of the engine's model, and fills the engine's model from it."""

    sharded = True

    def __init__(self, model: PreTrainedModel, mesh: DeviceMesh, temperature: float) -> None:
        self._policy = ShardedPolicy(model, mesh, temperature)
        self.model = self._policy.model

    @property
    def packs(self) -> bool:
        return False

    def log_probs(self, batch: Batch) -> TokenLogProbs:
        return self._policy(batch)

    def balanced(self, batches: list[Batch], total_trained_tokens: int) -> list[Batch]:
        # Every forward pass gathers weights from all ranks, so all ranks run the same number of micro-batches.
        most = int(max_over_ranks(torch.tensor(len(batches), device=self.model.device)).item())
        return [*batches, *(idle_batch(total_trained_tokens) for _ in range(most - len(batches)))]

    def publish(self) -> None:
        self._policy.fill()

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        return {"model": gathered(kept_weights(self.model)), "optimizer": gathered(optimizer.state_dict())}

    def restore(self, state: Mapping[str, Any], optimizer: Optimizer) -> None:
        weights, moments = sharded_state(state, self.model, optimizer.param_groups[0]["params"])
        restore_weights(self.model, weights)
        _load_optimizer(optimizer, moments)
        self.publish()


def _load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    # Optimizer kernel flags come from this process, not from the checkpoint.
    flags = {
        name: optimizer.param_groups[0][name] for name in ("fused", "foreach") if name in optimizer.param_groups[0]
    }
    optimizer.load_state_dict({**state, "param_groups": [{**group, **flags} for group in state["param_groups"]]})
