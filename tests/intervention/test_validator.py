"""The validator: waves, the first harmful step, retries, exact prompts."""

import dataclasses

from rti_exp.config.defaults import default_settings
from rti_exp.config.role_settings import JudgeSettings
from rti_exp.intervention.case import Case
from rti_exp.intervention.validator import Validator
from rti_exp.types import Evidence, Verdict
from tests.support.fakes import GuessWorld, call, wrong_texts
from tests.support.interventions import FINE, HARMFUL, JUDGE, CharRenderer, Cut, RoleEngine, episode, fixed

WORLD = GuessWorld()
TASK = WORLD.tasks("train")[0]
RENDERER = CharRenderer()


def a_case(texts=None, member: int = 0) -> Case:
    return Case(
        group=0,
        occurrence=0,
        task=TASK,
        trajectory=episode(WORLD, TASK, member, wrong_texts(TASK) if texts is None else texts),
        evidence=Evidence(level="rubric", rubric=("the key fits",)),
        seed=0,
        iteration=0,
    )


def judged(engine: RoleEngine, cases, **settings) -> list[Verdict]:
    role = default_settings(JudgeSettings, max_tokens=200, **settings)
    results = Validator(engine=engine, renderer=RENDERER, prompt=JUDGE, settings=role).judge(cases)
    return [result for result in results if isinstance(result, Verdict)]


def harmful_at(*texts: str):
    return lambda prompt, seed: HARMFUL if prompt.split("<assistant>")[-2].split("<end>")[0] in texts else FINE


def test_prompts_are_the_exact_ids_and_the_request():
    engine = RoleEngine()
    case = a_case()
    judged(engine, [case])
    take, opened, told = wrong_texts(TASK)
    ends = [
        f"<user>box a<end><assistant>{take}<end>",
        f"<tool>took blue<end><assistant>{opened}<end>",
        f"<tool>stuck<end><assistant>{told}<end>",
    ]
    request = "<system>judge: the key fits<end><assistant>"
    assert [RENDERER.show(one.prompt_ids) for one in engine.requests] == [
        "".join(ends[: step + 1]) + request for step in range(3)
    ]
    for step, one in enumerate(engine.requests):
        history = case.trajectory.prompt_ids(step) + case.turns[step].action_ids
        assert one.prompt_ids[: len(history)] == history


def test_first_harmful_step_ends_the_scan():
    engine = RoleEngine(judge=harmful_at(call("open"), "stuck"))
    assert judged(engine, [a_case()]) == [
        Verdict(kind="harmful", step=1, reason="the wrong key", answers=(FINE, HARMFUL))
    ]


def test_waves_of_all_cases_go_together():
    engine = RoleEngine(judge=harmful_at("stuck", call("take", key="blue")))
    late = a_case([call("open"), call("open"), "stuck"], member=1)
    short = a_case(["hello"], member=2)
    verdicts = judged(engine, [a_case(), late, short], steps_per_call=1)
    assert [(verdict.kind, verdict.step, len(verdict.answers)) for verdict in verdicts] == [
        ("harmful", 0, 1),
        ("harmful", 2, 3),
        ("no_fault", None, 1),
    ]
    assert engine.calls == [("judge", 3), ("judge", 1), ("judge", 1)]
    engine.calls.clear()
    assert [verdict.step for verdict in judged(engine, [a_case(), late, short], steps_per_call=2)] == [0, 2, None]
    assert engine.calls == [("judge", 5), ("judge", 1)]


def test_waves_do_not_change_the_verdict():
    engine = RoleEngine(judge=lambda prompt, seed: HARMFUL if seed % 3 == 0 else FINE)
    cases = [a_case(member=member) for member in range(8)]
    verdicts = judged(engine, cases, steps_per_call=8)
    assert {verdict.kind for verdict in verdicts} == {"harmful", "no_fault"}
    for steps in (1, 2, 3):
        assert judged(engine, cases, steps_per_call=steps) == verdicts


def test_unreadable_answers_are_asked_again_at_temperature_1():
    def second_time(prompt: str, seed: int) -> str:
        return FINE if seed in retried else "hm"

    case = a_case(["hello"])
    retried = {case.draw("validator", 0, 1)}
    engine = RoleEngine(judge=second_time)
    assert judged(engine, [case], retries=2) == [Verdict(kind="no_fault", answers=(FINE,))]
    assert [(one.seed, one.sampling.temperature) for one in engine.requests] == [
        (case.draw("validator", 0, 0), 0.0),
        (case.draw("validator", 0, 1), 1.0),
    ]


def test_only_what_was_unreadable_is_asked_again():
    engine = RoleEngine(
        judge=lambda prompt, seed: "hm" if prompt.split("<assistant>")[-2].startswith("stuck") else FINE
    )
    assert judged(engine, [a_case()], retries=2) == [Verdict(kind="no_verdict", answers=(FINE, FINE, "hm"))]
    assert engine.calls == [("judge", 3), ("judge", 1), ("judge", 1)]


def test_unreadable_before_a_harmful_step_is_no_verdict():
    def judge(prompt: str, seed: int) -> str:
        return HARMFUL if prompt.split("<assistant>")[-2].startswith("stuck") else "hm"

    assert judged(RoleEngine(judge=judge), [a_case()]) == [Verdict(kind="no_verdict", answers=("hm",))]


def test_unreadable_after_the_harmful_step_does_not_matter():
    def judge(prompt: str, seed: int) -> str:
        return HARMFUL if '"take"' in prompt.split("<assistant>")[-2] else "hm"

    [verdict] = judged(RoleEngine(judge=judge), [a_case()], retries=0)
    assert verdict == Verdict(kind="harmful", step=0, reason="the wrong key", answers=(HARMFUL,))


def test_an_answer_that_was_cut_off_is_unreadable():
    [verdict] = judged(RoleEngine(judge=fixed(Cut(HARMFUL))), [a_case()], retries=0)
    assert verdict == Verdict(kind="no_verdict", answers=(HARMFUL,))


def test_no_turns_no_fault_no_call():
    engine = RoleEngine()
    case = a_case()
    empty = dataclasses.replace(case, trajectory=dataclasses.replace(case.trajectory, turns=()))
    assert judged(engine, [empty]) == [Verdict(kind="no_fault")]
    assert judged(engine, []) == []
    assert engine.calls == []
