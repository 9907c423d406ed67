"""The benchmark's evaluators on a transcript, combined as the benchmark combines them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.tau2.benchmark import Domain

ENDED = ("user_stop", "agent_stop")
"""The endings that are scored; any other ending has reward 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The evaluators' verdicts on a transcript as it stands, however it ended.

    `parts` has a number in [0, 1] for each basis of the task's reward (DB, ENV_ASSERTION, ACTION, COMMUNICATE);
    `reward` is their product. The checks are None where the basis is not the task's.
    """

    reward: float
    parts: Mapping[str, float]
    database_matches: bool | None = None
    assertions: tuple[tuple[str, bool], ...] | None = None
    """(assertion in words, met) of each."""
    actions: tuple[bool, ...] | None = None
    """Of each required action, whether it was taken."""
    communicated: tuple[bool, ...] | None = None
    """Of each piece of information, whether the agent gave it to the user."""


def score(domain: Domain, task: Any, transcript: Sequence[Any], *, solo: bool) -> Score:
    """
    Args:
        task: The benchmark's task.
        transcript: The benchmark's messages, including those of the task's history.
    Raises:
        InfrastructureError: an evaluator raised.
    """
    if task.evaluation_criteria is None:
        return Score(reward=1.0, parts={})
    try:
        return _score(domain, task, list(transcript), solo)
    except Exception as error:  # third-party code
        raise InfrastructureError(f"the benchmark's evaluator raised {type(error).__name__}: {error}") from error


def _score(domain: Domain, task: Any, transcript: list[Any], solo: bool) -> Score:
    module = importlib.import_module
    basis = {kind.value for kind in task.evaluation_criteria.reward_basis}
    if "NL_ASSERTION" in basis:
        raise ValueError("the reward needs a judge model (NL_ASSERTION), which is not supported")
    environment = module("tau2.evaluator.evaluator_env").EnvironmentEvaluator.calculate_reward(
        environment_constructor=domain.environment, task=task, full_trajectory=transcript, solo_mode=solo
    )
    action = module("tau2.evaluator.evaluator_action").ActionEvaluator.calculate_reward(task, transcript)
    communicate = module("tau2.evaluator.evaluator_communicate").CommunicateEvaluator.calculate_reward(task, transcript)
    reward, parts = 1.0, {}
    for bases, info in (({"DB", "ENV_ASSERTION"}, environment), ({"ACTION"}, action), ({"COMMUNICATE"}, communicate)):
        if basis & bases:
            reward *= info.reward
            parts.update({kind.value: float(value) for kind, value in (info.reward_breakdown or {}).items()})
    matches = environment.db_check is None or bool(environment.db_check.db_match)
    return Score(
        reward=float(reward),
        parts=parts,
        database_matches=matches if "DB" in basis else None,
        assertions=tuple((in_words(check.env_assertion), bool(check.met)) for check in environment.env_assertions or ())
        if "ENV_ASSERTION" in basis
        else None,
        actions=tuple(bool(check.action_match) for check in action.action_checks or ()) if "ACTION" in basis else None,
        communicated=tuple(bool(check.met) for check in communicate.communicate_checks or ())
        if "COMMUNICATE" in basis
        else None,
    )


def in_words(assertion: Any) -> str:
    """An assertion on the user's or the agent's side, e.g. "user: mobile_data_status(expected_status=True)"."""
    side = "user" if assertion.env_type == "user" else "records"
    name = assertion.func_name.removeprefix("assert_")
    arguments = ", ".join(f"{key}={value!r}" for key, value in assertion.arguments.items())
    return f"{'' if assertion.assert_value else 'not '}{side}: {name}({arguments})"
