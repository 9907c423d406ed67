"""The metrics of one RL iteration.

All counts are over the tasks of all ranks. A metric without a value in an iteration (no correction, no update) is
None. Two runs of the same config and seed give equal rows, apart from `is_timing` metrics.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from rti_exp.objective.passk import pass_at_k
from rti_exp.training.distributed import gather_from_ranks
from rti_exp.training.iteration import Iteration
from rti_exp.types import Author, Intervention, Outcome, Status, Trajectory


def is_timing(name: str) -> bool:
    """Whether a metric depends on the clock; only these may differ between reruns."""
    return name.startswith("time/") or name == "tokens/per_second"


class MetricSource(Protocol):
    """Adds metrics to each iteration's: what remote roles used, how far a sampler is from the scorer."""

    def begin(self) -> None:
        """An iteration begins on this rank."""
        ...

    def metrics(self) -> Mapping[str, float | None]:
        """The iteration's metrics, over all ranks; every rank must call it."""
        ...


def over_ranks(tokens: Mapping[str, int], seconds: Mapping[str, float]) -> tuple[dict[str, int], dict[str, float]]:
    """Tokens summed over the ranks, and the seconds of the slowest rank; every rank must call it."""
    ranks = gather_from_ranks((dict(tokens), dict(seconds)))
    names = sorted({name for counts, _ in ranks for name in counts})
    phases = sorted({phase for _, times in ranks for phase in times})
    return (
        {name: sum(counts.get(name, 0) for counts, _ in ranks) for name in names},
        {phase: max(times.get(phase, 0.0) for _, times in ranks) for phase in phases},
    )


def iteration_metrics(
    iteration: Iteration, *, success_threshold: float, sources: Sequence[MetricSource] = ()
) -> dict[str, float | None]:
    """The flat metrics of a train row, by name, without "kind" and "iteration"."""
    tokens, update = iteration.tokens, iteration.update
    generated = tokens.get("generated", 0) + tokens.get("role_generated", 0)
    seconds = iteration.seconds.get("iteration", 0.0)
    metrics = {
        **_reward_metrics(iteration, success_threshold),
        **_intervention_metrics([record for group in iteration.groups for record in group.interventions]),
        "loss/policy": update.policy_loss,
        "loss/kl": update.kl,
        "loss/clip_share": update.clip_share,
        "loss/ratio_max": update.ratio_max,
        "policy/entropy": update.entropy,
        "policy/gradient_norm": update.gradient_norm,
        "updates/steps": update.steps,
        "tokens/generated": tokens.get("generated", 0),
        "tokens/scored": tokens.get("scored", 0),
        "tokens/trained": update.trained_tokens,
        "tokens/role_generated": tokens.get("role_generated", 0),
        "tokens/role_scored": tokens.get("role_scored", 0),
        "tokens/per_second": generated / seconds if seconds > 0 else None,
        **{
            f"time/{phase}": iteration.seconds.get(phase, 0.0)
            for phase in ("rollout", "roles", "score", "update", "iteration")
        },
    }
    for source in sources:
        metrics.update(source.metrics())
    return metrics


def log_to_lightning(trainer: Any, metrics: Mapping[str, float | None], iteration: int, *, finished: bool) -> None:
    """Gives an iteration's metrics to the trainer's callbacks and loggers, with the iteration as x-axis.

    Loggers get them every `log_every_n_steps` iterations and after the last. Lightning's own step count does not
    survive a resume, and `LightningModule.log_dict` takes 10 ms for the fifty metrics of an iteration.
    """
    logged = {name: float(value) for name, value in metrics.items() if value is not None}
    tensors = {name: torch.tensor(value) for name, value in {**logged, "step": float(iteration)}.items()}
    trainer.callback_metrics.update(tensors)
    trainer.logged_metrics.update(tensors)
    every = trainer.log_every_n_steps  # 0: never
    if every and (iteration % every == 0 or finished):
        for logger in trainer.loggers:
            logger.log_metrics(logged, step=iteration)
            logger.save()


def _reward_metrics(iteration: Iteration, success_threshold: float) -> dict[str, float | None]:
    """Metrics of the trajectories as sampled, before any intervention; `groups/signal` is after it.

    Rewards, pass@k and `groups/all_failed` leave out a teacher's trajectories, which have their own reward metric.
    """
    groups = iteration.groups
    sampled = [trajectory for group in groups for trajectory in group.sampled]
    valid = [trajectory for trajectory in sampled if trajectory.valid]
    by_teacher = [trajectory for trajectory in valid if trajectory.has_turn_by(Author.TEACHER)]
    by_policy = [[member for member in group.sampled if not member.has_turn_by(Author.TEACHER)] for group in groups]
    group_counts = [success_count(members, success_threshold) for members in by_policy]
    counts = [(samples, successes) for samples, successes in group_counts if samples]
    # Logged only where a chat template starts new segments.
    new_segments = sum(turn.new_segment for trajectory in sampled for turn in trajectory.turns)
    return {
        "reward/mean": mean([member.reward for members in by_policy for member in members if member.valid]),
        "reward/teacher_mean": mean([trajectory.reward for trajectory in by_teacher]),
        "pass@1/before": mean([pass_at_k(samples, successes, 1) for samples, successes in counts]),
        "pass@G/before": mean([float(successes > 0) for _, successes in counts]),
        "groups/all_failed": mean([float(valid > 0 and successes == 0) for valid, successes in group_counts]),
        "groups/signal": mean([float(any(value != 0 for value in values)) for values in iteration.advantages]),
        "groups/refills": iteration.refills,
        "trajectories/valid": len(valid),
        "trajectories/truncated": sum(trajectory.status is Status.TRUNCATED for trajectory in sampled),
        "trajectories/infrastructure_failure": len(sampled) - len(valid),
        **({"trajectories/new_segments": new_segments} if new_segments else {}),
    }


def _intervention_metrics(interventions: Sequence[Intervention]) -> dict[str, float | None]:
    perplexities = [record.perplexity for record in interventions if record.perplexity is not None]
    accepted = [record for record in interventions if record.outcome is Outcome.ACCEPTED]
    weights = [weight for record in accepted for weight in record.weights]
    return {
        "funnel/attempts": len(interventions),
        **{f"funnel/{outcome}": sum(record.outcome is outcome for record in interventions) for outcome in Outcome},
        "correction/perplexity_mean": mean(perplexities),
        "correction/perplexity_median": statistics.median(perplexities) if perplexities else None,
        "correction/accepted_perplexity_mean": mean(
            [record.perplexity for record in accepted if record.perplexity is not None]
        ),
        "correction/rho_mean": mean(weights),
        "correction/reencoded": sum(
            record.correction is not None and record.correction.reencoded for record in interventions
        ),
        "correction/rho_std": statistics.pstdev(weights) if weights else None,
    }


def success_count(trajectories: Sequence[Trajectory], success_threshold: float) -> tuple[int, int]:
    """(valid samples, successes) of one task; infrastructure failures are in neither."""
    valid = [trajectory for trajectory in trajectories if trajectory.valid]
    return len(valid), sum(trajectory.reward >= success_threshold for trajectory in valid)


def mean(values: Sequence[float]) -> float | None:
    """None for an empty sequence; inf propagates."""
    return math.fsum(values) / len(values) if values else None
