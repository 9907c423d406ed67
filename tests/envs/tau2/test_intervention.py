"""The paper's own failure, from end to end with scripted roles: the agent of telecom calls `run_speed_test`, a tool of
the user's, and gives up; the correction asks the user instead, and the same policy then solves the task."""

from __future__ import annotations

import json

from rti_exp.config.defaults import default_settings
from rti_exp.config.role_settings import JudgeSettings, RolePrompt, VerifierSettings
from rti_exp.config.settings import GateSettings, InterventionSettings, ReweightSettings, RolloutSettings
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.intervention.corrector import SelfCorrector
from rti_exp.intervention.gate import PerplexityGate
from rti_exp.intervention.pipeline import Interventions, Roles
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.training.records import intervention_records
from rti_exp.types import Author, Group, Message, Outcome, Status
from tests.support.fakes import tiny_tokenizer
from tests.support.tau2_play import TRANSFERRED, task_of, use, world

TASK = task_of("telecom", "[mobile_data_issue]airplane_mode_on|user_abroad_roaming_enabled_off[PERSONA:None]")
RENDERER = TokenRenderer(tiny_tokenizer())
ROLLOUT = default_settings(RolloutSettings, max_tokens=400, max_context=20_000)
ROLE = default_settings(JudgeSettings, max_tokens=400, steps_per_call=1)
SPEED_TEST = use("run_speed_test").content
GIVE_UP = use("transfer_to_human_agents", summary="no speed test").content
HARMFUL = json.dumps({"harmful": True, "reason": "the user runs speed tests"})
ASK = "Please run a speed test and tell me the result."
CHECKS = {
    "gold": RolePrompt(role="system", text="gold? {evidence}"),
    "leak": RolePrompt(role="system", text="leak? {evidence}"),
}


def policy(prompt: str) -> str:
    """It wants a speed test at once; without a result it gives up, with one it goes on as a competent agent does."""
    last = prompt.split("<|end|>")[-2]
    if "not found" in last:
        return GIVE_UP
    if "Transfer successful" in last:
        return TRANSFERRED
    if "Speed test failed" not in prompt:
        return SPEED_TEST
    return "Please turn airplane mode off." if "Airplane Mode is now OFF" not in prompt else "Now turn on data roaming."


def roles(prompt: str, seed: int) -> str:
    request = prompt.split("<|system|>")[-1] if "<|system|>" in prompt else ""
    if request.startswith("judge"):
        judged = prompt.split("<|assistant|>")[-2]
        harmful = "run_speed_test" in judged and "not a tool of the agent" not in judged
        return json.dumps(
            {"harmful": harmful, "reason": "the user runs speed tests"} if harmful else {"harmful": False}
        )
    if request.startswith("rewrite"):
        return ASK
    if request.startswith(("gold", "leak")):
        return '{"pass": true}'
    return policy(prompt)


def intervened() -> tuple[Group, Group, ScriptedEngine]:
    """The group as sampled, the group after the interventions, and the engine that played everybody."""
    telecom = world("telecom")
    engine = ScriptedEngine(roles, RENDERER, log_probs=-0.5)
    collector = Collector(environment=telecom, engine=engine, renderer=RENDERER, settings=ROLLOUT, seed=0)
    voice = {"engine": engine, "renderer": RENDERER}
    intervene = Interventions(
        collector=collector,
        roles=Roles(
            validator=Validator(**voice, prompt=RolePrompt(role="system", text="judge: {evidence}"), settings=ROLE),
            corrector=SelfCorrector(
                **voice, prompt=RolePrompt(role="system", text="rewrite: {evidence} | {reason}"), settings=ROLE
            ),
            verifier=Verifier(
                **voice,
                prompts=CHECKS,
                settings=default_settings(VerifierSettings, rule=True, checks=["gold", "leak"], max_tokens=400),
            ),
            gate=PerplexityGate(default_settings(GateSettings, delta=5.0)),
        ),
        reweight=default_settings(ReweightSettings),
        settings=default_settings(InterventionSettings, corrections=1),
    )
    sampled = collector.collect([TASK], 2, 1)
    return sampled[0], intervene(sampled, 1).groups[0], engine


def test_the_papers_failure_is_found_corrected_and_solved() -> None:
    sampled, merged, _ = intervened()
    for trajectory in sampled.sampled:
        assert (trajectory.status, trajectory.reward) == (Status.OK, 0.0)
        assert dict(trajectory.reward_parts) == {"ENV_ASSERTION": 0.0}
        assert [turn.message.content for turn in trajectory.turns] == [SPEED_TEST, GIVE_UP, TRANSFERRED]
        assert trajectory.turns[0].observations == (
            Message(role="tool", content="Error: Tool 'run_speed_test' not found."),
        )
    [attempt] = merged.interventions
    assert (attempt.outcome, attempt.step, attempt.original) == (Outcome.ACCEPTED, 0, SPEED_TEST)
    assert attempt.correction is not None
    assert attempt.correction.text == ASK
    assert [(check.name, check.judge, check.passed) for check in attempt.checks] == [
        ("gold", "policy", True),
        ("leak", "policy", True),
        ("leak", "rule", True),
    ]
    solved = merged.trajectories[attempt.parent]
    assert (solved.status, solved.reward, dict(solved.reward_parts)) == (Status.OK, 1.0, {"ENV_ASSERTION": 1.0})
    assert [turn.author for turn in solved.turns] == [Author.CORRECTOR, Author.POLICY, Author.POLICY]
    assert solved.turns[0].observations[0].content.startswith("Speed test failed: No Connection")
    assert solved.turns[-1].observations[0].content == "It works now, thank you. ###STOP###"
    assert [one.reward for one in merged.trajectories] == [float(place == attempt.parent) for place in range(2)]


def test_the_evidence_is_in_no_rollout_prompt_and_holds_no_solution() -> None:
    _, merged, engine = intervened()
    [attempt] = merged.interventions
    assert "mobile_data_status(expected_status=True)" in attempt.evidence.text
    assert "toggle" not in attempt.evidence.text
    for trajectory in merged.trajectories:
        text = RENDERER.text([one for turn in trajectory.turns for one in turn.context_ids + turn.action_ids])
        assert "ENV_ASSERTION" not in text
    asked = [RENDERER.text(request.prompt_ids) for request in engine.generate_requests]
    assert sum("judge: ENV_ASSERTION" in prompt for prompt in asked) == 1


def test_the_attempt_is_recorded() -> None:
    _, merged, _ = intervened()
    [line] = intervention_records(1, merged, RENDERER.text)
    assert {key: line[key] for key in ("task_id", "family", "step", "outcome", "reason", "child_reward")} == {
        "task_id": TASK.id,
        "family": "mobile_data_issue",
        "step": 0,
        "outcome": "accepted",
        "reason": "the user runs speed tests",
        "child_reward": 1.0,
    }
    assert (line["original"], line["correction"]) == (SPEED_TEST, ASK)
    assert "Please turn airplane mode off." in line["after"]
