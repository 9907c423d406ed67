"""The correctors: exact prompts, seeds, usable answers, a teacher with its own tokenizer."""

import dataclasses

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.role_settings import JudgeSettings
from rti_exp.config.settings import ReweightSettings, Scorer, SettingsError
from rti_exp.intervention.case import HarmfulStep
from rti_exp.intervention.corrector import CUT_OFF, EMPTY, SelfCorrector, TeacherCorrector
from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.types import Correction, Evidence, Message, Outcome, ToolCall
from tests.support.attempts import case_of, harmful_step
from tests.support.chat_fakes import DATA, chat_tokenizer
from tests.support.fakes import GuessWorld, call, wrong_texts
from tests.support.interventions import (
    REWRITE,
    CharRenderer,
    Cut,
    RoleEngine,
    episode,
    failed_group,
    fixed,
    interventions,
    records,
)

WORLD = GuessWorld()
TASK = WORLD.tasks("train")[0]
RENDERER = CharRenderer()
THEIRS = CharRenderer(shift=1)
"""Another tokenizer: its end of turn (id 0x110001) is the policy's header of a system message."""
ROLE = default_settings(JudgeSettings, temperature=1.0, max_tokens=200)
SETTINGS = {"prompt": REWRITE, "settings": ROLE}
TAKE_RED = call("take", key="red")


def a_rewrite(step: int = 1, sample: int = 0) -> HarmfulStep:
    start = WORLD.start(TASK)
    case = case_of(
        episode(WORLD, TASK, 3, wrong_texts(TASK)),
        TASK,
        evidence=Evidence(level="rubric", rubric=("the key fits",)),
        seed=5,
        iteration=7,
        opening=tuple(start.messages),
        tools=tuple(start.tools),
    )
    return harmful_step(case, step, sample=sample, reason="why")


PROMPT = (
    f"<user>box a<end><assistant>{wrong_texts(TASK)[0]}<end><tool>took blue<end><assistant>{call('open')}<end>"
    "<system>rewrite: the key fits | why<end><assistant>"
)


def correction(source: str) -> Correction:
    message = Message(role="assistant", content=TAKE_RED, tool_calls=(ToolCall(name="take", arguments={"key": "red"}),))
    return Correction(
        prompt_ids=a_rewrite().case.ids_through(1)
        + RENDERER.appended([Message(role="system", content="rewrite: the key fits | why")], closed=True),
        action_ids=RENDERER.action_ids(TAKE_RED),
        text=TAKE_RED,
        message=message,
        source=source,
    )


def test_self_corrector():
    engine = RoleEngine()
    corrector = SelfCorrector(engine=engine, renderer=RENDERER, **SETTINGS)
    assert corrector.correct([a_rewrite()]) == [correction("self")]
    assert RENDERER.show(correction("self").prompt_ids) == PROMPT
    [request] = engine.requests
    assert request.prompt_ids == correction("self").prompt_ids
    assert request.seed == a_rewrite().case.draw("corrector", 0)
    assert (request.sampling.temperature, request.sampling.max_tokens) == (1.0, 200)
    assert request.sampling.stop_ids == RENDERER.stop_ids


@pytest.mark.parametrize(("answer", "why"), [("", EMPTY), (" \n", EMPTY), (Cut(TAKE_RED), CUT_OFF), (Cut(""), CUT_OFF)])
def test_empty_or_cut_off_is_no_correction(answer, why):
    engine = RoleEngine(rewrite=fixed(answer))
    corrector = SelfCorrector(engine=engine, renderer=RENDERER, **SETTINGS)
    assert corrector.correct([a_rewrite()]) == [why]


def test_nothing_to_correct_asks_nothing():
    engine = RoleEngine(down=("rewrite",))
    assert SelfCorrector(engine=engine, renderer=RENDERER, **SETTINGS).correct([]) == []


def teacher(engine: RoleEngine, *, same: bool) -> TeacherCorrector:
    return TeacherCorrector(
        engine=engine,
        renderer=RENDERER if same else THEIRS,
        policy_renderer=RENDERER,
        same_tokenizer=same,
        **SETTINGS,
    )


def test_teacher_with_the_policys_tokenizer_continues_its_exact_ids():
    engine = RoleEngine()
    corrector = teacher(engine, same=True)
    assert corrector.correct([a_rewrite()]) == [correction("teacher")]
    assert engine.requests[0].prompt_ids == correction("teacher").prompt_ids


def test_teacher_with_another_tokenizer_is_asked_in_its_ids_and_encoded_for_the_policy():
    engine = RoleEngine(renderer=THEIRS)
    corrector = teacher(engine, same=False)
    assert corrector.correct([a_rewrite()]) == [dataclasses.replace(correction("teacher"), reencoded=True)]
    [request] = engine.requests
    assert THEIRS.show(request.prompt_ids) == PROMPT
    assert request.sampling.stop_ids == THEIRS.stop_ids


def test_teachers_answer_for_a_policy_whose_template_opens_the_thinking():
    opens = (DATA / "qwen3_chat_template.jinja").read_text(encoding="utf-8")
    opens = opens.replace("{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}")
    policy = ChatRenderer(chat_tokenizer("qwen3", opens))
    corrector = TeacherCorrector(
        engine=RoleEngine(renderer=THEIRS),
        renderer=THEIRS,
        policy_renderer=policy,
        same_tokenizer=False,
        **SETTINGS,
    )
    [corrected] = corrector.correct([a_rewrite()])
    assert isinstance(corrected, Correction)
    assert corrected.text == TAKE_RED
    assert corrected.message.tool_calls == (ToolCall(name="take", arguments={"key": "red"}),)
    assert policy.text(corrected.action_ids) == f"\n</think>\n\n{TAKE_RED}<|im_end|>"


def test_teachers_cut_off_answer_is_judged_in_its_own_ids():
    # The policy's end of turn means the character 0x10FFFF there.
    engine = RoleEngine(renderer=THEIRS, rewrite=fixed(Cut("ab\U0010ffff")))
    assert THEIRS.encode("\U0010ffff") == RENDERER.stop_ids
    corrector = teacher(engine, same=False)
    assert corrector.correct([a_rewrite()]) == [CUT_OFF]


def test_teacher_in_the_pipeline():
    policy, theirs = RoleEngine(), RoleEngine(renderer=THEIRS)
    play = interventions(policy, WORLD, corrector=teacher(theirs, same=False))
    [record] = records(play([failed_group(WORLD, TASK)], 0))
    assert record.outcome is Outcome.ACCEPTED
    assert record.correction is not None
    assert record.correction.source == "teacher"
    assert record.correction.reencoded
    assert [kind for kind, _ in policy.calls] == ["judge", "gold+leak+plausible", "score", "policy", "policy"]
    assert theirs.calls == [("rewrite", 1)]
    # pi_cal is the policy's, under the correction prompt in its own ids.
    assert [score.prompt_ids for score in policy.scores][1] == record.correction.prompt_ids
    tokens = play.result.tokens
    assert tokens["role_generated"] + tokens["generated"] == policy.generated_tokens + theirs.generated_tokens


def test_source_scores_pi_cal_in_a_call_of_its_own():
    policy = RoleEngine()
    theirs = RoleEngine(log_prob=lambda prompt, text: -0.4)
    reweight = default_settings(ReweightSettings, eps_cal=0.5, scorer=Scorer.source)
    play = interventions(policy, WORLD, corrector=teacher(theirs, same=True), reweight=reweight)
    [record] = records(play([failed_group(WORLD, TASK)], 0))
    assert record.outcome is Outcome.ACCEPTED
    assert ("score", 1) in policy.calls
    assert theirs.calls == [("rewrite", 1), ("score", 1)]
    assert set(record.calibration_log_probs) == {-0.4}
    assert record.weights == pytest.approx((1.1051709180756477,) * len(record.weights))
    assert play.result.tokens["role_scored"] == 2 * len(record.log_probs)


def test_source_that_is_down_costs_the_attempts():
    theirs = RoleEngine(down=("score",))
    reweight = default_settings(ReweightSettings, scorer=Scorer.source)
    play = interventions(RoleEngine(), WORLD, corrector=teacher(theirs, same=True), reweight=reweight)
    [record] = records(play([failed_group(WORLD, TASK)], 0))
    assert (record.outcome, record.error) == (Outcome.ROLE_UNAVAILABLE, "the engine is down")
    assert record.perplexity == pytest.approx(1.6487212707001282)
    assert record.weights == ()


def test_source_with_another_tokenizer_is_refused():
    reweight = default_settings(ReweightSettings, scorer=Scorer.source)
    with pytest.raises(SettingsError, match=r"reweight\.scorer='source'"):
        interventions(RoleEngine(), WORLD, corrector=teacher(RoleEngine(), same=False), reweight=reweight)
