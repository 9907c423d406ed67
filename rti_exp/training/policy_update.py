"""The update of an iteration: mini-batches -> micro-batches -> loss -> gradient -> optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from rti_exp.config.settings import UpdateSettings
from rti_exp.objective.algorithm import Algorithm, LossStats
from rti_exp.training.batch import Batch, micro_batches, mini_batches, trained_tokens
from rti_exp.training.distributed import max_over_ranks, sum_over_ranks, world_size
from rti_exp.training.fsdp import whole_tensor
from rti_exp.training.iteration import UpdateStats
from rti_exp.training.token_log_probs import TrainedPositions
from rti_exp.training.trained_policy import TrainedPolicy
from rti_exp.types import Sample


class DivergedError(RuntimeError):
    """A loss or gradient is not finite; the weights are still those from before that optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepResult:
    """Sums over the micro-batches of one optimizer step, of all ranks."""

    policy_loss: float
    kl: float
    clip_share: float
    entropy: float
    ratio_max: float
    gradient_norm: float


class PolicyUpdate:
    """Takes one optimizer step for each mini-batch that has samples on any rank.

    A step's loss is (sum of its token losses) / (trained tokens of the iteration) * (number of steps): the scale of a
    step does not depend on `algorithm.updates`. Only samples with a signal count as trained; without any, weights and
    optimizer state stay bit-identical. All forward passes run in eval mode: dropout would make the trained policy
    differ from the one that did the rollout.

    Args:
        reference: Log-probs of another model for the algorithm's loss; None if the algorithm needs none.
        seed: The run's; it orders the mini-batches.
    """

    def __init__(
        self, *, algorithm: Algorithm, settings: UpdateSettings, reference: TrainedPositions | None, seed: int
    ) -> None:
        self.algorithm = algorithm
        self.settings = settings
        self.reference = reference
        self.seed = seed

    def __call__(
        self,
        module: LightningModule,
        policy: TrainedPolicy,
        samples: Sequence[Sample],
        rank_samples: Sequence[Sample],
        iteration: int,
    ) -> UpdateStats:
        """
        Args:
            module: For Lightning's optimizer and backward.
            samples: The iteration's, of all ranks.
            rank_samples: Those of them that this rank trains.

        Raises:
            DivergedError: a loss or the gradient norm is not finite.
        """
        counts = [trained_tokens(part) for part in self._mini_batches(samples, iteration)]
        total, steps = sum(counts), sum(count > 0 for count in counts)
        results = [
            self._step(
                module,
                policy,
                self._micro_batches(policy, part, total),
                scale=steps * world_size(),
                iteration=iteration,
            )
            for part, count in zip(self._mini_batches(rank_samples, iteration), counts, strict=True)
            if count
        ]
        if not results:
            return UpdateStats()
        return UpdateStats(
            steps=steps,
            trained_tokens=total,
            policy_loss=sum(result.policy_loss for result in results),
            kl=sum(result.kl for result in results) if self.reference is not None else None,
            clip_share=sum(result.clip_share for result in results),
            ratio_max=max(result.ratio_max for result in results),
            entropy=sum(result.entropy for result in results),
            gradient_norm=math.fsum(result.gradient_norm for result in results) / steps,
        )

    def _mini_batches(self, samples: Sequence[Sample], iteration: int) -> list[list[Sample]]:
        return mini_batches(samples, self.settings.updates, self.seed, iteration)

    def packs(self, policy: TrainedPolicy) -> bool:
        """Whether neither forward pass computes padding."""
        return policy.packs and (self.reference is None or self.reference.packs)

    def _micro_batches(self, policy: TrainedPolicy, samples: Sequence[Sample], total: int) -> list[Batch]:
        batches = micro_batches(
            samples,
            max_tokens=self.settings.micro_batch_tokens,
            total_trained_tokens=total,
            packed=self.packs(policy),
        )
        return policy.balanced(batches, total)

    def _step(
        self, module: LightningModule, policy: TrainedPolicy, batches: Sequence[Batch], *, scale: float, iteration: int
    ) -> _StepResult:
        optimizer: Any = module.optimizers()
        optimizer.zero_grad()
        sums = torch.zeros(4, dtype=torch.float64, device=module.device)
        ratio_max = torch.zeros(1, dtype=torch.float64, device=module.device)
        for index, batch in enumerate(batches):
            with _gradient_sync(module, last=index == len(batches) - 1):
                loss, stats, entropy = self._loss(policy, batch.to(module.device))
                module.manual_backward(loss * scale)
            sums += torch.stack([stats.policy, stats.kl, stats.clip_share, entropy]).double()
            ratio_max = torch.maximum(ratio_max, stats.ratio_max.double())
        if not batches:
            # A rank without samples still takes part in the reduction of the gradients.
            module.manual_backward(sum(weight.sum() * 0.0 for weight in policy.model.parameters()))  # pyright: ignore
        policy_loss, kl, clip_share, entropy = sum_over_ranks(sums).tolist()
        _require_finite(policy_loss, "policy loss", iteration)
        _require_finite(kl, "KL to the reference", iteration)
        weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
        norm = whole_tensor(torch.nn.utils.clip_grad_norm_(weights, self.settings.gradient_clip)).item()
        _require_finite(norm, "gradient norm", iteration)
        optimizer.step()
        optimizer.zero_grad()
        return _StepResult(
            policy_loss=policy_loss,
            kl=kl,
            clip_share=clip_share,
            entropy=entropy,
            ratio_max=max_over_ranks(ratio_max).item(),
            gradient_norm=norm,
        )

    def _loss(self, policy: TrainedPolicy, batch: Batch) -> tuple[Tensor, LossStats, Tensor]:
        """Loss, its statistics, and the batch's share of the mean entropy."""
        scores = policy.log_probs(batch)
        reference_BT = None
        if self.reference is not None:
            with torch.no_grad():
                reference_BT = self.reference(batch).log_probs_BT
        loss, stats = self.algorithm.loss(scores.log_probs_BT, batch, reference_BT)
        return loss, stats, scores.entropy_BT.sum() / batch.total_trained_tokens


@contextmanager
def _gradient_sync(module: LightningModule, *, last: bool) -> Iterator[None]:
    """Under DDP only the last micro-batch's backward pass reduces gradients."""
    wrapped = module.trainer.model
    with wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) and not last else nullcontext():
        yield


def _require_finite(value: float, quantity: str, iteration: int) -> None:
    if not math.isfinite(value):
        raise DivergedError(f"iteration {iteration}: the {quantity} is {value}; the optimizer step was not taken")
