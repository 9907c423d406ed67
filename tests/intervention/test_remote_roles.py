"""Corrector, validator and verifier behind an endpoint on loopback, whole and broken."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `remote` is not installed")

from rti_exp.config.defaults import default_settings
from rti_exp.config.remote_settings import RemoteValidatorSettings, RemoteVerifierSettings
from rti_exp.config.role_settings import RolePrompt
from rti_exp.config.settings import ReweightSettings, Scorer, SettingsError
from rti_exp.engines.base import EngineUnusable
from rti_exp.engines.remote import RemoteDown, RemoteSettings
from rti_exp.intervention.pipeline import Interventions
from rti_exp.intervention.remote_roles import RemoteCorrector, RemoteValidator, RemoteVerifier
from rti_exp.types import Intervention, Outcome
from tests.support.fakes import GuessWorld, call, wrong_texts
from tests.support.faulty_server import FaultyServer, completion
from tests.support.interventions import (
    CHECKS,
    FINE,
    HARMFUL,
    JUDGE,
    PASS,
    REJECT,
    REWRITE,
    CharRenderer,
    Play,
    RoleEngine,
    failed_group,
    interventions,
    records,
)

WORLD = GuessWorld()
TASK = WORLD.tasks("train")[0]
RIGHT = call("take", key="red")
INSTRUCTION = RolePrompt(role="user", text="better: {evidence} | {reason}")


@dataclass
class Policy:
    renderer: CharRenderer = field(default_factory=CharRenderer)


def replaced(interventions: Interventions, **roles: Any) -> Interventions:
    """The same with other roles."""
    return Interventions(
        collector=interventions.collector,
        roles=dataclasses.replace(interventions.roles, **roles),
        reweight=default_settings(ReweightSettings, eps_cal=0.5),
        settings=interventions.settings,
    )


def corrector(remote: RemoteSettings) -> RemoteCorrector:
    return RemoteCorrector(
        policy=Policy(), prompt=REWRITE, remote=remote, instruction=INSTRUCTION, temperature=1.0, max_tokens=50
    )


def say(text: str, **changes: Any) -> Any:
    return lambda body: completion(text, **changes)


def corrected(
    server: FaultyServer, *, engine: RoleEngine | None = None, size: int = 2, **changes: Any
) -> tuple[list[Intervention], Play]:
    play = interventions(engine or RoleEngine(), WORLD, corrector=corrector(server.settings(**changes)))
    return records(play([failed_group(WORLD, TASK, size)], 0)), play


def test_a_remote_correction_is_accepted_and_scored_by_the_policy() -> None:
    policy = RoleEngine()
    with FaultyServer(answer=say(f" {RIGHT}\n")) as server:
        [record], play = corrected(server, engine=policy)
    assert record.outcome is Outcome.ACCEPTED
    assert record.correction is not None
    assert (record.correction.text, record.correction.source) == (RIGHT, "teacher")
    assert record.correction.reencoded
    assert record.correction.action_ids == CharRenderer().action_ids(RIGHT)
    # pi_cal is the policy's, under its own correction prompt.
    assert (
        CharRenderer()
        .show(record.correction.prompt_ids)
        .endswith(
            "<system>rewrite: the key fits; the code is told | failed: the key fits, the code is told | the wrong key"
            "<end><assistant>"
        )
    )
    assert [score.prompt_ids for score in policy.scores][1] == record.correction.prompt_ids
    assert play.result.tokens["role_generated"] == 3 + policy_role_tokens(policy)
    [body] = server.requests
    assert [(one["role"], one["content"]) for one in body["messages"][1:]] == [
        ("user", "box a"),
        ("assistant", wrong_texts(TASK)[0]),
        ("user", "better: the key fits; the code is told | failed: the key fits, the code is told | the wrong key"),
    ]
    assert body["messages"][0]["content"].startswith('Tools:\n{"name": "take"')
    assert (body["temperature"], body["max_tokens"]) == (1.0, 50)


def policy_role_tokens(policy: RoleEngine) -> int:
    judged, checked = 1 * (len(HARMFUL) + 1), 3 * (len(PASS) + 1)
    # Steps of the wrong texts are judged in one call: the first is harmful, two more are fine.
    return judged + 2 * (len(FINE) + 1) + checked


def test_texts_that_the_policys_tokenizer_changes_are_counted() -> None:
    class Spoiling(CharRenderer):
        def encode(self, text: str) -> tuple[int, ...]:
            return super().encode(text.replace("\u00e9", "e"))

    with FaultyServer(answer=say("caf\u00e9")) as server:
        teacher = corrector(server.settings())
        teacher.policy_renderer = Spoiling()
        play = interventions(RoleEngine(), WORLD, corrector=teacher)
        [record] = records(play([failed_group(WORLD, TASK)], 0))
    assert record.correction is not None
    assert record.correction.text == "cafe"
    assert teacher.changed_texts == 1


@pytest.mark.parametrize("fault", ["500", "429", "429_long", "hang", "drip", "half", "reset", "page", "no_choices"])
def test_a_teacher_that_is_broken_costs_its_attempts_within_a_time(fault: str) -> None:
    with FaultyServer([fault]) as server:
        started = time.monotonic()
        found, play = corrected(server, size=12, concurrency=2)
        again = records(play([failed_group(WORLD, TASK, 12)], 1))
        seconds = time.monotonic() - started
    assert [record.outcome for record in (*found, *again)] == [Outcome.ROLE_UNAVAILABLE] * 12
    assert all(record.error for record in found)
    assert seconds < 15  # two patiences and what the test takes; 12 requests one after the other would be more


def test_a_lost_request_costs_its_own_attempt_only() -> None:
    with FaultyServer(["ok", "400", "ok"], say(RIGHT)) as server:
        found, _ = corrected(server, size=6, concurrency=1)
    outcomes = sorted(record.outcome.value for record in found)
    assert outcomes == ["accepted", "accepted", "role_unavailable"]
    [lost] = [record for record in found if record.outcome is Outcome.ROLE_UNAVAILABLE]
    assert lost.error == "rejected: status 400: no such role"


def test_another_models_answer_is_no_correction_of_ours() -> None:
    with FaultyServer(["other_model"]) as server:
        [record], _ = corrected(server)
    assert record.outcome is Outcome.ROLE_UNAVAILABLE
    assert "corrector.remote.answers_as" in (record.error or "")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (say(RIGHT, finish_reason="length"), "the correction was cut off before its end"),
        (say("\n "), "the correction is empty"),
    ],
)
def test_an_answer_that_is_no_correction(answer: Any, why: str) -> None:
    with FaultyServer(answer=answer) as server:
        [record], _ = corrected(server)
    assert (record.outcome, record.error) == (Outcome.NO_CORRECTION, why)


def test_above_the_stated_rate_the_job_ends() -> None:
    with FaultyServer(["400"]) as server:
        with pytest.raises(RemoteDown, match=r"3 of the last 3 requests are lost"):
            corrected(server, size=6, failure_window=3, max_failure_rate=0.9)
        assert issubclass(RemoteDown, EngineUnusable)


def test_a_wrong_key_ends_the_job() -> None:
    with FaultyServer(["401"]) as server, pytest.raises(RemoteDown, match="denies access"):
        corrected(server)


def test_source_scores_are_refused() -> None:
    with FaultyServer() as server, pytest.raises(SettingsError, match=r"reweight\.scorer='source'"):
        interventions(
            RoleEngine(),
            WORLD,
            corrector=corrector(server.settings()),
            reweight=default_settings(ReweightSettings, scorer=Scorer.source),
        )


def validated(server: FaultyServer) -> list[Intervention]:
    engine = RoleEngine(down=("judge",))
    play = interventions(engine, WORLD)
    settings = RemoteValidatorSettings(
        remote=server.settings(concurrency=1),
        instruction=RolePrompt(role="user", text="harmful? {evidence}"),
        temperature=0.0,
        max_tokens=50,
        retries=1,
        steps_per_call=1,
    )
    validator = RemoteValidator(engine=engine, renderer=CharRenderer(), prompt=JUDGE, settings=settings)
    play.interventions = replaced(play.interventions, validator=validator)
    return records(play([failed_group(WORLD, TASK, 6)], 0))


def test_a_remote_validator() -> None:
    def answer(body: dict[str, Any]) -> Any:
        last_turn = [one["content"] for one in body["messages"] if one["role"] == "assistant"][-1]
        return completion(HARMFUL if '"open"' in last_turn else FINE)

    with FaultyServer(answer=answer) as server:
        found = validated(server)
    assert {record.step for record in found} == {1}
    assert {record.verdict.reason for record in found if record.verdict} == {"the wrong key"}
    assert [one["role"] for one in server.requests[-1]["messages"]] == [
        "system", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert server.requests[-1]["messages"][-1]["content"].startswith("harmful? the key fits")


def test_a_lost_verdict_costs_its_own_case() -> None:
    with FaultyServer(["400", "ok"], say(HARMFUL)) as server:
        found = validated(server)
    outcomes = sorted(record.outcome.value for record in found)
    assert outcomes == ["accepted", "accepted", "role_unavailable"]
    [lost] = [record for record in found if record.outcome is Outcome.ROLE_UNAVAILABLE]
    assert lost.verdict is None
    assert lost.error == "rejected: status 400: no such role"


def test_a_validator_that_is_down() -> None:
    with FaultyServer(["reset"]) as server:
        assert {record.outcome for record in validated(server)} == {Outcome.ROLE_UNAVAILABLE}


def test_prose_is_no_verdict() -> None:
    with FaultyServer(answer=say("I think it is fine.")) as server:
        found = validated(server)
        assert {record.outcome for record in found} == {Outcome.NO_VERDICT}
        assert len(server.requests) == 6  # each was asked once more


def verified(server: FaultyServer) -> list[Intervention]:
    engine = RoleEngine(down=("gold", "leak", "plausible"))
    play = interventions(engine, WORLD)
    instructions = {
        name: RolePrompt(role="user", text=f"{name}! {{evidence}} {{reason}}") for name in ("gold", "leak", "plausible")
    }
    settings = RemoteVerifierSettings(
        remote=server.settings(concurrency=1),
        instructions=instructions,
        temperature=0.0,
        max_tokens=50,
        retries=0,
        policy=True,
        rule=True,
        checks=["gold", "leak", "plausible"],
    )
    verifier = RemoteVerifier(engine=engine, renderer=CharRenderer(), prompts=CHECKS, settings=settings)
    play.interventions = replaced(play.interventions, verifier=verifier)
    return records(play([failed_group(WORLD, TASK, 2)], 0))


def test_a_remote_verifier() -> None:
    with FaultyServer(answer=say(PASS)) as server:
        [record] = verified(server)
    assert record.outcome is Outcome.ACCEPTED
    assert [(check.name, check.judge, check.passed) for check in record.checks] == [
        ("gold", "remote", True),
        ("leak", "remote", True),
        ("plausible", "remote", True),
        ("leak", "rule", True),
    ]
    asked = sorted(body["messages"][-1]["content"].partition("!")[0] for body in server.requests)
    assert asked == ["gold", "leak", "plausible"]
    assert {body["messages"][-2]["content"] for body in server.requests} == {RIGHT}


def test_a_check_that_says_no_decides_though_another_was_lost() -> None:
    def fault(body: dict[str, Any]) -> str:
        return "400" if body["messages"][-1]["content"].startswith("gold!") else "ok"

    with FaultyServer(fault, say(REJECT)) as server:
        assert verified(server)[0].outcome is Outcome.LEAKED
    with FaultyServer(fault, say(PASS)) as server:
        [record] = verified(server)
    assert record.outcome is Outcome.ROLE_UNAVAILABLE
    assert record.error == "[lost: rejected: status 400: no such role]"
    assert [check.failure is not None for check in record.checks] == [True, False, False, False]


@pytest.mark.parametrize("form", ["```json\n{}\n```", "it may be\n</think>\n\n{}", "<think>hm</think>```\n{}```"])
def test_verdicts_are_read_behind_thinking_and_in_a_fence(form: str) -> None:
    with FaultyServer(answer=say(form.replace("{}", HARMFUL))) as server:
        assert {record.step for record in validated(server)} == {0}
    with FaultyServer(answer=say(form.replace("{}", PASS))) as server:
        assert verified(server)[0].outcome is Outcome.ACCEPTED
