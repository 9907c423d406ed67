"""Limits on failures end a run with the counts and the first error."""

from __future__ import annotations

import dataclasses
import math

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.job_settings import LimitSettings
from rti_exp.training.failure_limits import (
    EnvironmentDownError,
    RolesDownError,
    require_usable_roles,
    require_valid_rollouts,
)
from rti_exp.types import Evidence, Group, Intervention, Outcome, Verdict
from tests.support.trajectories import group as one_group
from tests.support.trajectories import trajectory, turn

GOOD, BROKEN = trajectory([turn([1], [2])]), trajectory([turn([1], [2])], reward=math.nan)


def test_an_iteration_without_one_valid_rollout_ends_the_run() -> None:
    any_share = default_settings(LimitSettings, env_failures=1.0)
    with pytest.raises(EnvironmentDownError, match=r"iteration 3: 2 of 2 rollouts .* the first: broken"):
        require_valid_rollouts([one_group([BROKEN]), one_group([BROKEN])], "iteration 3", any_share)
    require_valid_rollouts([one_group([BROKEN]), one_group([BROKEN, GOOD])], "iteration 3", any_share)
    require_valid_rollouts([], "iteration 3", default_settings(LimitSettings, env_failures=0.0))


def test_more_broken_rollouts_than_allowed_end_the_run() -> None:
    half = [one_group([BROKEN, GOOD]), one_group([GOOD, BROKEN])]
    require_valid_rollouts(half, "iteration 3", default_settings(LimitSettings))
    with pytest.raises(
        EnvironmentDownError, match=r"3 of 5 rollouts .*, limits.env_failures is 0\.5; the first: broken"
    ):
        require_valid_rollouts([*half, one_group([BROKEN])], "iteration 3", default_settings(LimitSettings))
    with pytest.raises(EnvironmentDownError, match="2 of 4"):
        require_valid_rollouts(half, "iteration 3", default_settings(LimitSettings, env_failures=0.49))


def attempted(*outcomes: Outcome) -> list[Group]:
    """A group with an attempt for each outcome."""
    none = Verdict(kind="no_verdict")
    records = tuple(
        Intervention(
            id=str(place), task_id="t", family="f", parent=0, sample=0, verdict=none, outcome=outcome,
            evidence=Evidence(level="none"), error=f"error {place}" if outcome is Outcome.ROLE_FAILED else None,
        )
        for place, outcome in enumerate(outcomes)
    )  # fmt: skip
    return [dataclasses.replace(one_group([GOOD]), interventions=records)]


def test_roles_without_usable_answers_end_the_run() -> None:
    useless = [Outcome.NO_VERDICT] * 16 + [Outcome.NO_CHECK, Outcome.NO_CORRECTION]
    fine = attempted(*useless, Outcome.STILL_FAILED, Outcome.LEAKED)
    require_usable_roles(fine, "iteration 3", default_settings(LimitSettings, role_failures=0.9))  # 18 of 20
    message = r"iteration 3: 18 of 20 .* \(no_check 1, no_correction 1, no_verdict 16\), limits.role_failures is 0\.8"
    with pytest.raises(RolesDownError, match=message):
        require_usable_roles(fine, "iteration 3", default_settings(LimitSettings, role_failures=0.8))
    require_usable_roles(attempted(*useless), "iteration 3", default_settings(LimitSettings))  # 18 of 18, but few
    require_usable_roles(attempted(*useless * 9), "iteration 3", default_settings(LimitSettings, role_failures=1.0))


def test_an_engine_that_is_down_never_ends_the_run() -> None:
    down = attempted(*[Outcome.ROLE_UNAVAILABLE] * 100, Outcome.NO_VERDICT)
    require_usable_roles(down, "iteration 3", default_settings(LimitSettings, role_failures=0.0))


def test_a_role_that_raises_for_all_ends_the_run_however_few() -> None:
    with pytest.raises(RolesDownError, match=r"3 of 3 .*\(role_failed 3\).*; the first error: error 0"):
        require_usable_roles(attempted(*[Outcome.ROLE_FAILED] * 3), "iteration 3", default_settings(LimitSettings))
    require_usable_roles(
        attempted(Outcome.ROLE_FAILED, Outcome.ACCEPTED), "iteration 3", default_settings(LimitSettings)
    )
    require_usable_roles(attempted(), "iteration 3", default_settings(LimitSettings, role_failures=0.0))
