"""The pipeline on the tiny tokenizer, with the collector's own rollouts: ids are extended, never re-encoded."""

from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.intervention.corrector import SelfCorrector
from rti_exp.intervention.pipeline import Interventions
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier
from rti_exp.rollout.collect import Collector
from rti_exp.rollout.render import TokenRenderer
from rti_exp.settings import (
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RoleSettings,
    RolloutSettings,
    VerifierSettings,
)
from rti_exp.types import Outcome
from tests.fakes import GuessWorld, call, tiny_tokenizer
from tests.intervention.helpers import CHECKS, JUDGE, REWRITE

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


def test_failed_rollouts_become_corrected_ones_on_exact_ids():
    world = GuessWorld()
    renderer = TokenRenderer(tiny_tokenizer())
    engine = ScriptedEngine(answer, renderer, log_probs=-0.5)
    rollout = RolloutSettings(max_tokens=64)
    role = RoleSettings(max_tokens=64)
    collector = Collector(environment=world, engine=engine, renderer=renderer, settings=rollout, seed=0)
    play = Interventions(
        environment=world,
        renderer=renderer,
        collector=collector,
        engine=engine,
        validator=Validator(engine=engine, renderer=renderer, prompt=JUDGE, settings=role),
        corrector=SelfCorrector(engine=engine, renderer=renderer, prompt=REWRITE, settings=role),
        verifier=Verifier(
            engine=engine, renderer=renderer, prompts=CHECKS, settings=VerifierSettings(rule=True), role=role
        ),
        gate=GateSettings(),
        reweight=ReweightSettings(),
        settings=InterventionSettings(),
        rollout=rollout,
        seed=0,
    )
    groups = collector.collect(world.tasks("train")[:1], 4, 0)
    assert groups[0].all_failed(1.0)
    [merged] = play(groups, 0)
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
        assert renderer.text(child.prompt_ids(2)) == (
            f"<|bos|><|user|>box a<|end|><|assistant|>{call('take', key='red')}<|end|><|tool|>took red<|end|>"
            f"<|assistant|>{call('open')}<|end|><|tool|>code 27<|end|><|assistant|>"
        )
        prompt = record.correction.prompt_ids
        history = parent.prompt_ids(0) + parent.turns[0].action_ids
        assert prompt[: len(history)] == history
