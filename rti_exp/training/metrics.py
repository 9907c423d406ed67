"""The numbers of one RL iteration, from its groups; and the stopwatch that times it.

All counts are over the tasks of all ranks. A metric without value in an iteration (no correction was made, no
update was done) is None. Two runs of the same config and seed give equal rows but for `is_timing` metrics.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rti_exp.objective.passk import pass_at_k
from rti_exp.training.distributed import interleave
from rti_exp.types import Author, Group, Intervention, Outcome, Status, Trajectory


def is_timing(name: str) -> bool:
    """Whether a metric depends on the clock: the only ones that a rerun may change."""
    return name.startswith("time/") or name == "tokens/per_second"


class Stopwatch:
    """Seconds of wall clock by phase, summed over the uses of a phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def take(self, phase: str) -> float:
        """The seconds of a phase so far; it begins anew."""
        return self.seconds.pop(phase, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What the optimizer steps of an iteration did. Means are per trained token; None without a step."""

    steps: int = 0
    trained_tokens: int = 0
    policy_loss: float | None = None
    kl: float | None = None
    """In nats; None also without a reference."""
    clip_share: float | None = None
    ratio_max: float | None = None
    entropy: float | None = None
    """In nats."""
    gradient_norm: float | None = None
    """Before clipping, mean of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReport:
    """One iteration as one rank saw it; `merged` with the other ranks' it is the whole iteration.

    `tokens` has generated (rollouts, a teacher's too, and continuations), scored (log-probs asked for outside of
    interventions: of a reference or a teacher), role_generated and role_scored (what validator, corrector,
    verifier, gate and pi_cal took, whoever plays them); none is counted twice. `seconds` has rollout
    (continuations included), roles, score, update, iteration.
    """

    groups: Sequence[Group]
    advantages: Sequence[Sequence[float]]
    """Of each group's `trajectories`."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    refills: int = 0
    """Groups that were rolled out in place of others without signal; they are among `groups`, as are those."""


def merged(reports: Sequence[IterationReport]) -> IterationReport:
    """All ranks' reports as one: groups in the order of the tasks, tokens summed, seconds of the slowest rank."""
    return IterationReport(
        groups=interleave([report.groups for report in reports]),
        advantages=interleave([report.advantages for report in reports]),
        tokens={
            name: sum(report.tokens.get(name, 0) for report in reports)
            for name in sorted({name for report in reports for name in report.tokens})
        },
        seconds={
            phase: max(report.seconds.get(phase, 0.0) for report in reports)
            for phase in sorted({phase for report in reports for phase in report.seconds})
        },
        refills=sum(report.refills for report in reports),
    )


def iteration_metrics(
    report: IterationReport, update: UpdateStats, *, success_threshold: float
) -> dict[str, float | None]:
    """The flat metrics of a train row, by name, without "kind" and "iteration"."""
    generated = report.tokens.get("generated", 0) + report.tokens.get("role_generated", 0)
    seconds = report.seconds.get("iteration", 0.0)
    return {
        **_reward_metrics(report, success_threshold),
        **_intervention_metrics([record for group in report.groups for record in group.interventions]),
        "loss/policy": update.policy_loss,
        "loss/kl": update.kl,
        "loss/clip_share": update.clip_share,
        "loss/ratio_max": update.ratio_max,
        "policy/entropy": update.entropy,
        "policy/gradient_norm": update.gradient_norm,
        "updates/steps": update.steps,
        "tokens/generated": report.tokens.get("generated", 0),
        "tokens/scored": report.tokens.get("scored", 0),
        "tokens/trained": update.trained_tokens,
        "tokens/role_generated": report.tokens.get("role_generated", 0),
        "tokens/role_scored": report.tokens.get("role_scored", 0),
        "tokens/per_second": generated / seconds if seconds > 0 else None,
        **{
            f"time/{phase}": report.seconds.get(phase, 0.0)
            for phase in ("rollout", "roles", "score", "update", "iteration")
        },
    }


def _reward_metrics(report: IterationReport, success_threshold: float) -> dict[str, float | None]:
    """Of the trajectories as sampled, before any intervention, but for `groups/signal`.

    Rewards, pass@k and `groups/all_failed` leave out what a teacher rolled out, which has a reward of its own.
    """
    groups = report.groups
    sampled = [trajectory for group in groups for trajectory in group.sampled]
    valid = [trajectory for trajectory in sampled if trajectory.valid]
    taught = [trajectory for trajectory in valid if trajectory.has_turn_by(Author.TEACHER)]
    own = [[one for one in group.sampled if not one.has_turn_by(Author.TEACHER)] for group in groups]
    of_groups = [success_count(members, success_threshold) for members in own]
    counts = [count for count in of_groups if count[0]]
    # Told only where a chat template makes any.
    cuts = sum(turn.new_segment for trajectory in sampled for turn in trajectory.turns)
    return {
        "reward/mean": mean([one.reward for members in own for one in members if one.valid]),
        "reward/teacher_mean": mean([trajectory.reward for trajectory in taught]),
        "pass@1/before": mean([pass_at_k(samples, successes, 1) for samples, successes in counts]),
        "pass@G/before": mean([float(successes > 0) for _, successes in counts]),
        "groups/all_failed": mean([float(valid > 0 and successes == 0) for valid, successes in of_groups]),
        "groups/signal": mean([float(any(value != 0 for value in values)) for values in report.advantages]),
        "groups/refills": report.refills,
        "trajectories/valid": len(valid),
        "trajectories/truncated": sum(trajectory.status is Status.TRUNCATED for trajectory in sampled),
        "trajectories/infrastructure_failure": len(sampled) - len(valid),
        **({"trajectories/new_segments": cuts} if cuts else {}),
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
        "correction/reencoded": sum(one.correction is not None and one.correction.reencoded for one in interventions),
        "correction/rho_std": statistics.pstdev(weights) if weights else None,
    }


def success_count(trajectories: Sequence[Trajectory], success_threshold: float) -> tuple[int, int]:
    """(valid samples, successes) of one task; infrastructure failures are in neither."""
    valid = [trajectory for trajectory in trajectories if trajectory.valid]
    return len(valid), sum(trajectory.reward >= success_threshold for trajectory in valid)


def mean(values: Sequence[float]) -> float | None:
    """None of nothing; inf if a value is inf."""
    return math.fsum(values) / len(values) if values else None
