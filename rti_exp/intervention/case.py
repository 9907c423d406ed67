"""The working nouns: a case (a failed trajectory and what the roles may be told), and an attempt on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rti_exp.envs.base import Environment, InfrastructureError
from rti_exp.randomness import derive_seed
from rti_exp.rollout.environment_calls import environment_call
from rti_exp.types import (
    Check,
    Correction,
    Evidence,
    Intervention,
    Message,
    Outcome,
    Task,
    Trajectory,
    Turn,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One failed trajectory that was selected.

    `group` is the index of its group in the iteration, `occurrence` counts earlier groups of the same task
    (their draws differ); `opening` and `tools` are what the policy saw at its
    start.
    """

    group: int
    occurrence: int
    task: Task
    trajectory: Trajectory
    evidence: Evidence
    seed: int
    iteration: int
    opening: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.trajectory.turns

    def draw(self, *what: int | str) -> int:
        """The seed of one draw about this case."""
        again = (self.occurrence,) if self.occurrence else ()
        return derive_seed(self.seed, self.iteration, self.task.id, self.trajectory.member, *what, *again)

    def ids_through(self, step: int) -> tuple[int, ...]:
        """All ids up to the end of turn `step`'s action."""
        return self.trajectory.prompt_ids(step) + self.turns[step].action_ids


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One correction of a case, from its verdict to its outcome; `outcome` is None while it is in the running."""

    case: Case
    sample: int
    verdict: Verdict
    outcome: Outcome | None = None
    correction: Correction | None = None
    checks: tuple[Check, ...] = ()
    log_probs: tuple[float, ...] = ()
    calibration_log_probs: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    perplexity: float | None = None
    child: Trajectory | None = None
    shadow: bool = False
    error: str | None = None

    @property
    def id(self) -> str:
        case = self.case
        again = f"-again{case.occurrence}" if case.occurrence else ""
        return f"{case.iteration}-{case.task.id}-{case.trajectory.member}-{self.sample}{again}"

    @property
    def step(self) -> int:
        """The harmful step.

        Raises:
            ValueError: the validator found none.
        """
        if self.verdict.step is None:
            raise ValueError(f"attempt {self.id} has no harmful step")
        return self.verdict.step

    @property
    def turn(self) -> Turn:
        """The harmful turn, as sampled."""
        return self.case.turns[self.step]

    @property
    def written(self) -> Correction:
        """The correction.

        Raises:
            ValueError: none was written.
        """
        if self.correction is None:
            raise ValueError(f"attempt {self.id} has no correction")
        return self.correction

    def drop(self, outcome: Outcome, error: str | None = None) -> None:
        self.outcome, self.error = outcome, error

    def record(self) -> Intervention:
        """
        Raises:
            ValueError: the attempt has no outcome yet.
        """
        if self.outcome is None:
            raise ValueError(f"attempt {self.id} has no outcome")
        turn = None if self.verdict.step is None else self.turn
        return Intervention(
            id=self.id,
            task_id=self.case.task.id,
            family=self.case.task.family,
            parent=self.case.trajectory.member,
            sample=self.sample,
            verdict=self.verdict,
            outcome=self.outcome,
            evidence=self.case.evidence,
            original="" if turn is None else turn.message.content,
            correction=self.correction,
            checks=self.checks,
            log_probs=self.log_probs,
            calibration_log_probs=self.calibration_log_probs,
            weights=self.weights,
            perplexity=self.perplexity,
            state_hash="" if turn is None else turn.state_hash,
            child=self.child,
            shadow=self.shadow,
            error=self.error,
        )


def opened(case: Case, environment: Environment) -> Case | Attempt:
    """The case with its opening, its tools, and the evidence at the trajectory's end (level "none": no replay).

    If the environment breaks in the replay, an attempt that is already over in place of it.
    """
    level = case.evidence.level
    messages = [turn.message for turn in case.turns]
    try:
        start = environment_call(environment.start, case.task)
        opening, tools = environment_call(lambda: (tuple(start.messages), tuple(start.tools)))
        evidence = case.evidence
        if level != "none":
            evidence = environment_call(lambda: start.fork(messages).evidence(level))
    except InfrastructureError as error:
        lost = Verdict(kind="no_verdict")
        return Attempt(case=case, sample=0, verdict=lost, outcome=Outcome.REPLAY_MISMATCH, error=str(error))
    return replace(case, opening=opening, tools=tools, evidence=evidence)
