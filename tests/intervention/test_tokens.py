"""The pipeline on the tiny tokenizer, with the collector's own rollouts: ids are extended, never re-encoded."""

import math

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.role_settings import JudgeSettings, VerifierSettings
from rti_exp.config.settings import GateSettings, InterventionSettings, ReweightSettings, RolloutSettings
from rti_exp.engines.base import Engine, ScoreRequest
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.experiment.parts import default_engine
from rti_exp.intervention.corrector import SelfCorrector
from rti_exp.intervention.gate import PerplexityGate
from rti_exp.intervention.pipeline import Interventions, Roles
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.types import Outcome
from tests.support.fakes import GuessWorld, call, tiny_model, tiny_tokenizer
from tests.support.interventions import CHECKS, JUDGE, REWRITE

RENDERER = TokenRenderer(tiny_tokenizer())
SCRIPT = {
    "box a<|end|>": call("take", key="blue"),
    "took blue<|end|>": call("open"),
    "took red<|end|>": call("open"),
    "stuck<|end|>": "stuck",
    "code 27<|end|>": "27",
}


def answer(prompt: str, seed: int) -> str:
    asked = prompt.removesuffix("<|assistant|>")
    request = asked.rpartition("<|system|>")[2] if "<|system|>" in asked else ""
    if request.startswith("judge: "):
        return '{"harmful": true, "reason": "the wrong key"}' if '"blue"' in prompt else '{"harmful": false}'
    if request.startswith("rewrite: "):
        return call("take", key="red")
    if request:
        return '{"pass": true}'
    return next(text for end, text in SCRIPT.items() if asked.endswith(end))


def played(
    policy: Engine, roles: Engine, world: GuessWorld, rollout: RolloutSettings
) -> tuple[Collector, Interventions]:
    role = default_settings(JudgeSettings, max_tokens=64)
    collector = Collector(environment=world, engine=policy, renderer=RENDERER, settings=rollout, seed=0)
    play = Interventions(
        collector=collector,
        roles=Roles(
            validator=Validator(engine=roles, renderer=RENDERER, prompt=JUDGE, settings=role),
            corrector=SelfCorrector(engine=roles, renderer=RENDERER, prompt=REWRITE, settings=role),
            verifier=Verifier(
                engine=roles,
                renderer=RENDERER,
                prompts=CHECKS,
                settings=default_settings(VerifierSettings, rule=True, max_tokens=64),
            ),
            gate=PerplexityGate(default_settings(GateSettings, delta=math.inf)),
        ),
        reweight=default_settings(ReweightSettings),
        settings=default_settings(InterventionSettings),
    )
    return collector, play


def test_failed_rollouts_become_corrected_ones_on_exact_ids():
    world = GuessWorld()
    engine = ScriptedEngine(answer, RENDERER, log_probs=-0.5)
    collector, play = played(engine, engine, world, default_settings(RolloutSettings, max_tokens=64))
    groups = collector.collect(world.tasks("train")[:1], 4, 0)
    assert groups[0].all_failed(1.0)
    [merged] = play(groups, 0).groups
    outcomes = [record.outcome for record in merged.interventions]
    assert outcomes.count(Outcome.ACCEPTED) == 2
    assert outcomes.count(Outcome.NOT_CHOSEN) == 4
    assert sorted(trajectory.reward for trajectory in merged.trajectories) == [0.0, 0.0, 1.0, 1.0]
    for record in merged.interventions:
        child, parent = record.child, merged.sampled[record.parent]
        assert child is not None
        assert record.correction is not None
        assert child.prompt_ids(0) == parent.prompt_ids(0)
        assert child.turns[0].action_ids == record.correction.action_ids
        assert RENDERER.text(child.prompt_ids(2)) == (
            f"<|bos|><|user|>box a<|end|><|assistant|>{call('take', key='red')}<|end|><|tool|>took red<|end|>"
            f"<|assistant|>{call('open')}<|end|><|tool|>code 27<|end|><|assistant|>"
        )
        prompt = record.correction.prompt_ids
        history = parent.prompt_ids(0) + parent.turns[0].action_ids
        assert prompt[: len(history)] == history


def always_take_red(prompt: str, seed: int) -> str:
    asked = prompt.rpartition("<|system|>")[2]
    if asked.startswith("judge: "):
        return '{"harmful": true}'
    return call("take", key="red") if asked.startswith("rewrite: ") else '{"pass": true}'


def test_a_real_model_scores_and_continues_where_it_was_cut_off():
    world = GuessWorld(max_turns=3)
    policy = default_engine(model=tiny_model(vocab_size=len(tiny_tokenizer())))
    roles = ScriptedEngine(always_take_red, RENDERER)
    longest = len(RENDERER.action_ids(call("take", key="red")))
    collector, play = played(
        policy, roles, world, default_settings(RolloutSettings, max_tokens=longest, temperature=0.8)
    )
    groups = collector.collect(world.tasks("train")[:2], 4, 1)
    merged = play(groups, 1).groups
    assert [len(group.interventions) for group in merged] == [6, 6]
    cut_off = 0
    for group in merged:
        for record in group.interventions:
            child, parent, correction = record.child, group.sampled[record.parent], record.correction
            assert child is not None
            assert correction is not None
            assert record.outcome is Outcome.STILL_FAILED
            assert child.turns[0].context_ids == parent.turns[0].context_ids
            scored = [
                (correction.prompt_ids, correction.action_ids, record.calibration_log_probs, 1.0),
                (child.prompt_ids(0), correction.action_ids, record.log_probs, 1.0),  # the gate's
            ]
            scored += [
                (child.prompt_ids(k), turn.action_ids, turn.action_log_probs, 0.8) for k, turn in enumerate(child.turns)
            ]
            for prompt_ids, token_ids, log_probs, temperature in scored:
                [again] = policy.score(
                    [ScoreRequest(prompt_ids=prompt_ids, token_ids=token_ids, temperature=temperature)]
                )
                assert log_probs == pytest.approx(again, abs=1e-4)
            if parent.turns[0].action_ids[-1] not in RENDERER.stop_ids:
                cut_off += 1
                history = parent.prompt_ids(0) + parent.turns[0].action_ids
                assert correction.prompt_ids[: len(history) + 1] == (*history, *RENDERER.stop_ids)
    assert cut_off
    assert play(groups, 1).groups == merged
