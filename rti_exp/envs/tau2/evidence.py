"""The evidence of an episode: conditions of success and which failed; the solution at level `reference`."""

from __future__ import annotations

import json
from typing import Any

from rti_exp.envs.tau2.scoring import Score
from rti_exp.types import Evidence, EvidenceLevel


def evidence(
    level: EvidenceLevel, task: Any, score: Score, *, ending: str | None, policy: str | None = None
) -> Evidence:
    """The evidence of a level.

    Below `reference` it has neither the benchmark's actions nor the information to communicate, only how many there
    are and how many are missing.

    Args:
        task: The benchmark's task.
        score: Of the transcript as it stands.
        ending: How the conversation ended; None if it did not.
        policy: The domain's policy, if the evidence repeats it.
    """
    if level == "none":
        return Evidence(level=level)
    rubric: list[str] = [] if policy is None else [f"policy: {policy}"]
    failed: list[str] = []
    if score.database_matches is not None:
        rubric.append("DB: the records are in the end as the right actions leave them")
        failed += [] if score.database_matches else ["DB"]
    for text, met in score.assertions or ():
        rubric.append(f"ENV_ASSERTION: {text}")
        failed += [] if met else [f"ENV_ASSERTION {text}"]
    if score.actions:
        rubric.append(f"ACTION: {len(score.actions)} required actions are taken")
        failed += _missing("ACTION", score.actions)
    if score.communicated:
        rubric.append(f"COMMUNICATE: the user is told {len(score.communicated)} required pieces of information")
        failed += _missing("COMMUNICATE", score.communicated)
    rubric.append("END: the conversation comes to its end")
    if ending not in ("user_stop", "agent_stop"):
        failed.append(f"END ({ending or 'it was not ended'})")
    reference = solution(task) if level == "reference" else None
    return Evidence(level=level, rubric=tuple(rubric), failed=tuple(failed), reference=reference)


def _missing(name: str, checks: tuple[bool, ...]) -> list[str]:
    missing = checks.count(False)
    return [f"{name} ({missing} of {len(checks)} missing)"] if missing else []


def solution(task: Any) -> str:
    """The benchmark's actions, the information to communicate, and its criteria in plain language."""
    criteria = task.evaluation_criteria
    if criteria is None:
        return ""
    parts = [
        f"{action.requestor}: {json.dumps({'name': action.name, 'arguments': action.arguments}, ensure_ascii=False)}"
        for action in criteria.actions or ()
    ]
    parts += [f"tell the user: {text}" for text in criteria.communicate_info or ()]
    parts += list(criteria.nl_assertions or ())
    return "; ".join(parts)
