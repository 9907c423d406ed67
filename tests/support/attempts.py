"""Attempts at every stage of an intervention."""

from __future__ import annotations

from typing import Any

from rti_exp.intervention.case import Case, Checked, Continued, Corrected, HarmfulStep, Scored
from rti_exp.types import (
    Correction,
    Evidence,
    Message,
    Outcome,
    Task,
    Trajectory,
    Verdict,
)


def case_of(trajectory: Trajectory, task: Task, **fields: Any) -> Case:
    defaults: dict[str, Any] = {
        "group": 0, "occurrence": 0, "evidence": Evidence(level="none"), "seed": 0, "iteration": 0,
    }  # fmt: skip
    return Case(task=task, trajectory=trajectory, **{**defaults, **fields})


def harmful_step(case: Case, step: int = 0, *, sample: int = 0, reason: str = "") -> HarmfulStep:
    verdict = Verdict(kind="harmful", step=step, reason=reason)
    return HarmfulStep(case=case, verdict=verdict, step=step, sample=sample)


def checked_attempt(harmful: HarmfulStep, correction: Correction, rejection: Outcome | None = None) -> Checked:
    return Checked(corrected=Corrected(harmful=harmful, correction=correction), checks=(), rejection=rejection)


def continued_attempt(harmful: HarmfulStep, child: Trajectory, *, shadow: bool = False) -> Continued:
    """An attempt whose correction, checks and scores do not matter."""
    message = Message(role="assistant", content="x")
    correction = Correction(prompt_ids=(), action_ids=(1,), text="x", message=message, source="self")
    scored = Scored(checked=checked_attempt(harmful, correction), log_probs=(-1.0,), perplexity=2.0)
    return Continued(scored=scored, child=child, shadow=shadow)
