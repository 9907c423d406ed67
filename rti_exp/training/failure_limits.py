"""Limits on failures: above them an iteration ends the run, before any weight is updated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rti_exp.config.job_settings import LimitSettings
from rti_exp.types import Group, Outcome

UNUSABLE_ANSWERS = (Outcome.NO_VERDICT, Outcome.NO_CORRECTION, Outcome.NO_CHECK, Outcome.ROLE_FAILED)
"""Outcomes of roles that answered nothing usable or raised. An engine that is down is not among them."""
FEW_ATTEMPTS = 20
"""A share of fewer attempts than this does not end a run, unless a role raised for all of them."""


class EnvironmentDownError(RuntimeError):
    """Too few rollouts were valid: the environment is broken, and the remaining rollouts are a biased sample."""


class RolesDownError(RuntimeError):
    """Too few attempts had a usable answer from each role, so the run would not measure the method."""


def require_healthy(groups: Sequence[Group], when: str, limits: LimitSettings) -> None:
    """Both checks, on the groups of all ranks.

    Raises:
        EnvironmentDownError, RolesDownError: as below.
    """
    require_valid_rollouts(groups, when, limits)
    require_usable_roles(groups, when, limits)


def require_valid_rollouts(groups: Sequence[Group], when: str, limits: LimitSettings) -> None:
    """
    Args:
        when: For the message, as in "iteration 3".

    Raises:
        EnvironmentDownError: all rollouts, or more than the share `limits.env_failures`, are infrastructure failures.
    """
    sampled = [trajectory for group in groups for trajectory in group.sampled]
    failed = [trajectory for trajectory in sampled if not trajectory.valid]
    if failed and (len(failed) == len(sampled) or len(failed) > limits.env_failures * len(sampled)):
        raise EnvironmentDownError(
            f"{when}: {len(failed)} of {len(sampled)} rollouts are infrastructure failures, "
            f"limits.env_failures is {limits.env_failures:g}; the first: {failed[0].error}"
        )


def require_usable_roles(groups: Sequence[Group], when: str, limits: LimitSettings) -> None:
    """
    Raises:
        RolesDownError: more than the share `limits.role_failures` of enough attempts had no usable answer.
    """
    attempts = [
        attempt
        for group in groups
        for attempt in group.interventions
        if attempt.outcome is not Outcome.ROLE_UNAVAILABLE
    ]
    unusable = [attempt for attempt in attempts if attempt.outcome in UNUSABLE_ANSWERS]
    counts = Counter(attempt.outcome for attempt in unusable)
    enough = len(attempts) >= FEW_ATTEMPTS or counts[Outcome.ROLE_FAILED] == len(attempts)
    if enough and len(unusable) > limits.role_failures * len(attempts):
        listed = ", ".join(f"{outcome} {count}" for outcome, count in sorted(counts.items()))
        first_error = next((attempt.error for attempt in unusable if attempt.error), None)
        raise RolesDownError(
            f"{when}: {len(unusable)} of {len(attempts)} attempts have no usable answer from a role ({listed}), "
            f"limits.role_failures is {limits.role_failures:g}"
            + (f"; the first error: {first_error}" if first_error else "")
        )
