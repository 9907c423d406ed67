"""The nouns of one intervention, in the order of its stages: case, harmful step, corrected, checked, scored, continued.

Each stage adds what it found to the noun of the stage before. An attempt that leaves the pipeline becomes `Ended`, with
its outcome and the last noun that it reached; `intervention_record` turns it into the `Intervention` that is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rti_exp.envs.base import Environment
from rti_exp.envs.contract import checked_evidence, checked_opening
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
    """One selected failed trajectory, with what the roles may see of it.

    `group` is the index of its group in the iteration. `occurrence` counts earlier groups of the same task, whose draws
    differ. `opening` and `tools` are the policy's at the start of the episode.
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

    def draw(self, *parts: int | str) -> int:
        """The seed of one draw for this case."""
        repeat = (self.occurrence,) if self.occurrence else ()
        return derive_seed(self.seed, self.iteration, self.task.id, self.trajectory.member, *parts, *repeat)

    def ids_through(self, step: int) -> tuple[int, ...]:
        """All ids up to the end of turn `step`'s action."""
        return self.trajectory.prompt_ids(step) + self.turns[step].action_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmfulStep:
    """A case whose verdict names a step; correction number `sample` of it is to be drawn."""

    case: Case
    verdict: Verdict
    step: int
    sample: int

    @property
    def id(self) -> str:
        return attempt_id(self.case, self.sample)

    @property
    def turn(self) -> Turn:
        """The harmful turn, as sampled."""
        return self.case.turns[self.step]

    @property
    def seed(self) -> int:
        """The seed of the correction's draw."""
        return self.case.draw("corrector", self.sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """A harmful step and its rewritten turn."""

    harmful: HarmfulStep
    correction: Correction

    @property
    def case(self) -> Case:
        return self.harmful.case

    @property
    def step(self) -> int:
        return self.harmful.step

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The rollout prompt of the step."""
        return self.case.trajectory.prompt_ids(self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A correction with the verifier's checks. One that was rejected is still scored, for the record."""

    corrected: Corrected
    checks: tuple[Check, ...]
    rejection: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A correction with its log-probs under the rollout prompt and, for rho, under the correction prompt."""

    checked: Checked
    log_probs: tuple[float, ...]
    perplexity: float
    calibration_log_probs: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    @property
    def corrected(self) -> Corrected:
        return self.checked.corrected


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A correction and the trajectory that continues from it. A shadow was dropped by the gate."""

    scored: Scored
    child: Trajectory
    shadow: bool = False

    @property
    def case(self) -> Case:
        return self.scored.corrected.case

    @property
    def sample(self) -> int:
        return self.scored.corrected.harmful.sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt with its outcome, and the last noun that it reached.

    `verdict` is set for a case that ended with a verdict that names no step.
    """

    reached: Case | HarmfulStep | Corrected | Checked | Scored | Continued
    outcome: Outcome
    error: str | None = None
    verdict: Verdict | None = None
    shadow: bool = False

    @property
    def case(self) -> Case:
        """The case of the attempt."""
        return _stages(self.reached)[0]

    @property
    def sample(self) -> int:
        harmful = _stages(self.reached)[1]
        return 0 if harmful is None else harmful.sample


def attempt_id(case: Case, sample: int) -> str:
    repeat = f"-again{case.occurrence}" if case.occurrence else ""
    return f"{case.iteration}-{case.task.id}-{case.trajectory.member}-{sample}{repeat}"


def _stages(
    reached: Case | HarmfulStep | Corrected | Checked | Scored | Continued,
) -> tuple[Case, HarmfulStep | None, Corrected | None, Checked | None, Scored | None, Continued | None]:
    """All nouns of an attempt; None for stages that it did not reach."""
    continued = reached if isinstance(reached, Continued) else None
    scored = continued.scored if continued is not None else reached if isinstance(reached, Scored) else None
    checked = scored.checked if scored is not None else reached if isinstance(reached, Checked) else None
    corrected = checked.corrected if checked is not None else reached if isinstance(reached, Corrected) else None
    harmful = corrected.harmful if corrected is not None else reached if isinstance(reached, HarmfulStep) else None
    case = harmful.case if harmful is not None else reached
    assert isinstance(case, Case)
    return case, harmful, corrected, checked, scored, continued


def intervention_record(ended: Ended) -> Intervention:
    """The record of an attempt."""
    case, harmful, corrected, checked, scored, continued = _stages(ended.reached)
    return Intervention(
        id=attempt_id(case, ended.sample),
        task_id=case.task.id,
        family=case.task.family,
        parent=case.trajectory.member,
        sample=ended.sample,
        verdict=ended.verdict if harmful is None else harmful.verdict,
        outcome=ended.outcome,
        evidence=case.evidence,
        original="" if harmful is None else harmful.turn.message.content,
        correction=None if corrected is None else corrected.correction,
        checks=() if checked is None else checked.checks,
        log_probs=() if scored is None else scored.log_probs,
        calibration_log_probs=() if scored is None else scored.calibration_log_probs,
        weights=() if scored is None else scored.weights,
        perplexity=None if scored is None else scored.perplexity,
        state_hash="" if harmful is None else harmful.turn.state_hash,
        child=None if continued is None else continued.child,
        shadow=ended.shadow,
        error=ended.error,
    )


def with_evidence(case: Case, environment: Environment) -> Case:
    """The case with its opening, its tools, and the evidence at the trajectory's end (level "none": no replay).

    Raises:
        InfrastructureError: the environment broke in the replay.
    """
    level = case.evidence.level
    messages = [turn.message for turn in case.turns]
    start = environment_call(environment.start, case.task)
    opening, tools = environment_call(lambda: checked_opening(start.messages, start.tools))
    if level == "none":
        return replace(case, opening=opening, tools=tools)
    evidence = environment_call(lambda: checked_evidence(start.fork(messages).evidence(level)))
    return replace(case, opening=opening, tools=tools, evidence=evidence)
