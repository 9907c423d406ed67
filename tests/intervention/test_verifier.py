"""The verifier: which checks are asked, by whom, in which order they decide."""

import dataclasses

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.role_settings import RolePrompt, VerifierSettings
from rti_exp.config.settings import SettingsError
from rti_exp.intervention.case import Corrected
from rti_exp.intervention.verifier import Verifier, rejection
from rti_exp.types import Check, Correction, Evidence, Outcome
from tests.support.attempts import case_of, harmful_step
from tests.support.fakes import GuessWorld, call, wrong_texts
from tests.support.interventions import CHECKS, PASS, REJECT, CharRenderer, RoleEngine, episode, fixed

WORLD = GuessWorld()
TASK = WORLD.tasks("train")[0]
RENDERER = CharRenderer()


def an_attempt(text: str, *, step: int = 1, sample: int = 0) -> Corrected:
    start = WORLD.start(TASK)
    case = case_of(
        episode(WORLD, TASK, 0, wrong_texts(TASK)),
        TASK,
        evidence=Evidence(level="reference", rubric=("the code is told",), reference="key red, code 27"),
        opening=tuple(start.messages),
        tools=tuple(start.tools),
    )
    ids = RENDERER.action_ids(text)
    return Corrected(
        harmful=harmful_step(case, step, sample=sample, reason="why"),
        correction=Correction(prompt_ids=(), action_ids=ids, text=text, message=RENDERER.message(ids), source="self"),
    )


def verifier(engine: RoleEngine, **settings) -> Verifier:
    return Verifier(
        engine=engine,
        renderer=RENDERER,
        prompts=CHECKS,
        settings=default_settings(VerifierSettings, max_tokens=200, **settings),
    )


def asked(name, passed: bool | None = True, answer: str = PASS) -> Check:
    return Check(name=name, judge="policy", passed=passed, answer=answer)


def rule(passed: bool, answer: str = "") -> Check:
    return Check(name="leak", judge="rule", passed=passed, answer=answer)


@pytest.mark.parametrize(
    ("settings", "checks"),
    [
        ({}, (asked("gold"), asked("leak"), asked("plausible"))),
        ({"checks": ["plausible", "gold"]}, (asked("gold"), asked("plausible"))),
        ({"checks": ["gold"]}, (asked("gold"),)),
        ({"checks": ["leak"]}, (asked("leak"),)),
        ({"checks": ["plausible"]}, (asked("plausible"),)),
        ({"checks": []}, ()),
        ({"policy": False}, ()),
        ({"policy": False, "rule": True}, (rule(False, "27"),)),
        ({"rule": True}, (asked("gold"), asked("leak"), asked("plausible"), rule(False, "27"))),
        ({"rule": True, "checks": ["gold"]}, (asked("gold"),)),
        ({"policy": False, "rule": True, "checks": ["gold"]}, ()),
    ],
)
def test_which_checks_are_made(settings, checks):
    engine = RoleEngine()
    assert verifier(engine, **settings).check([an_attempt("the code is 27")]) == [checks]
    by_policy = sum(check.judge == "policy" for check in checks)
    assert [number for _, number in engine.calls] == ([by_policy] if by_policy else [])


def test_all_checks_of_all_attempts_are_asked_in_one_call_and_come_back_in_order():
    engine = RoleEngine(leak=lambda prompt, seed: REJECT if "<assistant>27<end>" in prompt else PASS)
    found = verifier(engine).check([an_attempt("27"), an_attempt("hello", sample=1)])
    assert found == [
        (asked("gold"), asked("leak", False, REJECT), asked("plausible")),
        (asked("gold"), asked("leak"), asked("plausible")),
    ]
    assert engine.calls == [("gold+leak+plausible", 6)]
    assert len({request.seed for request in engine.requests}) == 6


def test_prompts_show_the_history_the_correction_and_the_request():
    engine = RoleEngine()
    verifier(engine).check([an_attempt("27")])
    history = f"<user>box a<end><assistant>{wrong_texts(TASK)[0]}<end><tool>took blue<end><assistant>27<end>"
    told = "the code is told | reference: key red, code 27"
    assert [RENDERER.show(request.prompt_ids) for request in engine.requests] == [
        f"{history}<system>gold? {told}<end><assistant>",
        f"{history}<system>leak? {told}<end><assistant>",
        f"{history}<system>plausible?<end><assistant>",
    ]


def test_unreadable_checks_are_asked_again_then_not_passed():
    engine = RoleEngine(gold=fixed("perhaps"))
    assert verifier(engine, checks=["gold", "leak"]).check([an_attempt("27")]) == [
        (asked("gold", None, "perhaps"), asked("leak"))
    ]
    assert engine.calls == [("gold+leak", 2), ("gold", 1)]


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("27", rule(False, "27")),
        (call("open", code="27"), rule(False, "27")),
        (call("take", key="red"), rule(True)),
        ("what is in box a?", rule(True)),
    ],
)
def test_rule_on_corrections(text, check):
    engine = RoleEngine()
    assert verifier(engine, policy=False, rule=True).check([an_attempt(text)]) == [(check,)]
    assert engine.calls == []


@pytest.mark.parametrize(
    ("checks", "outcome"),
    [
        ((), None),
        ((asked("gold"), asked("leak"), asked("plausible")), None),
        ((asked("gold", False), asked("plausible", False)), Outcome.MISSES_REQUIREMENT),
        ((asked("gold", False), asked("leak", False), asked("plausible", False)), Outcome.LEAKED),
        ((asked("gold"), asked("plausible", None)), Outcome.NO_CHECK),
        ((asked("gold", None), asked("plausible", False)), Outcome.IMPLAUSIBLE),
        ((asked("gold"), asked("leak"), rule(False)), Outcome.LEAKED),
        ((asked("leak", False), rule(True)), Outcome.LEAKED),
    ],
)
def test_rejection(checks, outcome):
    assert rejection(checks) is outcome


def test_a_check_without_prompt_is_refused():
    with pytest.raises(SettingsError, match=r"verifier.prompts=\['gold'\]: must have a prompt for \['leak'\]"):
        Verifier(
            engine=RoleEngine(),
            renderer=RENDERER,
            prompts={"gold": RolePrompt(role="system", text="gold?")},
            settings=default_settings(VerifierSettings, checks=["leak", "gold"]),
        )


def test_rule_knows_only_the_history_before_the_step():
    texts = (call("take", key="red"), call("open"), "28")
    attempt = an_attempt("27", step=0)
    case = dataclasses.replace(attempt.case, trajectory=episode(WORLD, TASK, 0, texts))
    attempt = dataclasses.replace(attempt, harmful=harmful_step(case, 0))
    assert verifier(RoleEngine(), policy=False, rule=True).check([attempt]) == [(rule(False, "27"),)]
    attempt = dataclasses.replace(attempt, harmful=harmful_step(case, 2))
    assert verifier(RoleEngine(), policy=False, rule=True).check([attempt]) == [(rule(True),)]
