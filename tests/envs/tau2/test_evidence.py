"""The evidence that the roles get of a failed episode."""

from __future__ import annotations

import pytest

from tests.support.tau2_play import (
    ROAMING,
    TRANSFERRED,
    UNSCORED,
    benchmark_task,
    say,
    start,
    task_of,
    use,
    world,
)


def test_evidence_tells_what_failed_and_the_solution_at_reference_only() -> None:
    episode = start(task_of("telecom", ROAMING))
    episode.step(use("run_speed_test"))
    assert episode.evidence("none").text == ""
    evidence = episode.evidence("rubric")
    assert evidence.rubric == (
        "ENV_ASSERTION: user: mobile_data_status(expected_status=True)",
        "ENV_ASSERTION: user: internet_speed(expected_speed=200, expected_desc='excellent')",
        "END: the conversation comes to its end",
    )
    assert evidence.failed == (
        "ENV_ASSERTION user: mobile_data_status(expected_status=True)",
        "ENV_ASSERTION user: internet_speed(expected_speed=200, expected_desc='excellent')",
        "END (it was not ended)",
    )
    assert evidence.reference is None
    assert episode.evidence("reference").reference == (
        'user: {"name": "toggle_airplane_mode", "arguments": {}}; user: {"name": "toggle_roaming", "arguments": {}}'
    )


def test_evidence_counts_the_information_that_it_must_not_name() -> None:
    episode = start(task_of("mock", "impossible_task_1"))
    assert episode.evidence("rubric").failed == ("ACTION (1 of 1 missing)", "END (it was not ended)")
    episode.step(use("transfer_to_human_agents", summary="x"))
    result = episode.step(say(TRANSFERRED))
    assert (result.reward, dict(result.reward_parts)) == (1.0, {"DB": 1.0, "ACTION": 1.0})
    assert episode.evidence("rubric").failed == ()


@pytest.mark.parametrize("domain", ["mock", "telecom"])
def test_no_gold_action_is_in_the_evidence_below_reference(domain: str) -> None:
    for task in world(domain).tasks("train"):
        if task.payload["task"] == UNSCORED:
            continue
        criteria = benchmark_task(domain, task).evaluation_criteria
        shown = start(task).evidence("rubric").text
        for action in criteria.actions or ():
            assert action.name not in shown, task.id
        for text in criteria.communicate_info or ():
            assert text not in shown, task.id


def test_the_evidence_can_repeat_the_policy() -> None:
    episode = start(policy_in_evidence=True)
    assert episode.evidence("rubric").rubric[0].startswith("policy: # Mock Domain Policy")
