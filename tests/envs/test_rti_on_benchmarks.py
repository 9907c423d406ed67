"""The whole method on benchmarks, roles and policy scripted: all fail by one misstep, it is corrected, one succeeds."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from rti_exp.config.defaults import default_settings
from rti_exp.config.role_settings import JudgeSettings, VerifierSettings
from rti_exp.config.settings import (
    Baseline,
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RolloutSettings,
    Scope,
)
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.envs.base import Environment
from rti_exp.experiment.parts import default_environment
from rti_exp.intervention.corrector import SelfCorrector
from rti_exp.intervention.gate import PerplexityGate
from rti_exp.intervention.pipeline import Interventions, Roles
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier
from rti_exp.objective.advantages import group_advantages
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.training.samples import to_samples
from rti_exp.types import Author, Group, Outcome, Task
from tests.support.fakes import call, tiny_tokenizer
from tests.support.interventions import CHECKS, JUDGE, REWRITE

PASS = '{"pass": true}'
LEAKY = "the leaky one"


@dataclass(frozen=True)
class Story:
    """`right` is what succeeds; the policy says `misstep` in place of `right[at]`, and then `after`."""

    environment: Environment
    task: Task
    right: Sequence[str]
    at: int
    misstep: str
    after: Sequence[str]

    def policy(self, said: Sequence[str]) -> str:
        if len(said) < self.at:
            return self.right[len(said)]
        if len(said) == self.at:
            return self.misstep
        path = [*self.right[: self.at], self.misstep, *self.after]
        return (path if said[self.at] == self.misstep else self.right)[len(said)]

    def answer(self, prompt: str, seed: int) -> str:
        """Roles by their request, the policy by what was said so far."""
        request = prompt.rpartition("<|system|>")[2] if "<|system|>" in prompt else ""
        said = [part.partition("<|end|>")[0] for part in prompt.split("<|assistant|>")[1:-1]]
        if request.startswith("judge: "):
            harmful = said[-1] == self.misstep
            return json.dumps({"harmful": harmful, "reason": "the misstep"} if harmful else {"harmful": False})
        if request.startswith("rewrite: "):
            return LEAKY if seed % 2 else self.right[self.at]
        if request.startswith("leak? "):
            return json.dumps({"pass": said[-1] != LEAKY})
        return PASS if request else self.policy(said)


def bfcl() -> Story:
    """In request 2 the policy claims to have searched, and has not."""
    pytest.importorskip("bfcl_eval", reason="needs the extra bfcl")
    pytest.importorskip("mpmath", reason="needs the extra bfcl")

    environment = default_environment("bfcl_base", category="base")
    right = [
        call("cd", folder="document"),
        call("mkdir", dir_name="temp"),
        call("mv", source="final_report.pdf", destination="temp"),
        "Moved.",
        call("cd", folder="temp"),
        call("grep", file_name="final_report.pdf", pattern="budget analysis"),
        "Found.",
        call("sort", file_name="final_report.pdf"),
        "Sorted.",
        call("cd", folder=".."),
        call("mv", source="previous_report.pdf", destination="temp"),
        call("cd", folder="temp"),
        call("diff", file_name1="final_report.pdf", file_name2="previous_report.pdf"),
        "Compared.",
    ]
    return Story(environment, environment.tasks("train")[0], right, 5, "I have searched it.", right[7:])


def text_world() -> Story:
    """The policy does what Simon did not say, and has lost at once."""
    pytest.importorskip("textworld_express", reason="needs the extra textworld")

    environment = default_environment(
        "textworld_express", games=["simonsays"], parameters={"simonsays": "gameLength=3,numDistractors=2"}
    )
    right = ["slice grape", "jump up and down", "touch orange"]
    return Story(environment, environment.tasks("train")[3], right, 1, "smell grape", [])


def navigation() -> Story:
    """The paper's failure: a search without the city, and the first hit, which is another place."""
    pytest.importorskip("mcp", reason="needs the extra mcp")
    from rti_exp.envs.mcp.navigation.town_map import TownMap

    environment = default_environment("mcp_navigation")
    task, town = environment.tasks("train")[0], TownMap()
    called, number = task.payload["rubric"]
    start, goal = (town.places[stop] for stop in called["arguments"]["stops"])
    mode, wrong = called["arguments"]["mode"], town.search(goal.name)[0]
    unit = "minutes" if number["value"] == town.route([start.id, goal.id], mode).minutes else "kilometres"
    wrong_number = getattr(town.route([start.id, wrong.id], mode), unit)
    right = [
        call("search_places", query=f"{start.name} {start.city}"),
        call("search_places", query=f"{goal.name} {goal.city}"),
        call("plan_route", stops=[start.id, goal.id], mode=mode),
        f"It is {number['value']}",
    ]
    after = [call("plan_route", stops=[start.id, wrong.id], mode=mode), f"It is {wrong_number}"]
    return Story(environment, task, right, 1, call("search_places", query=goal.name), after)


def verifiers_lock() -> Story:
    """A wrong code jams the lock for good."""
    pytest.importorskip("verifiers", reason="needs the package verifiers and the extra of this name")

    environment = default_environment("verifiers", name="tests.support.verifiers_locks")
    return Story(environment, environment.tasks("train")[0], ["look", "37"], 1, "38", ["37", "37", "37"])


def played(story: Story, corrections: int) -> tuple[Group, Group]:
    """A group as it was sampled, and as it is after the interventions."""
    renderer = TokenRenderer(tiny_tokenizer())
    rollout = default_settings(RolloutSettings, max_tokens=400, max_context=20_000)

    def log_probs(prompt: tuple[int, ...], ids: tuple[int, ...]) -> list[float]:
        return [-0.25 if "<|system|>rewrite: " in renderer.text(prompt) else -0.5] * len(ids)

    engine = ScriptedEngine(story.answer, renderer, log_probs=log_probs)
    collector = Collector(environment=story.environment, engine=engine, renderer=renderer, settings=rollout, seed=0)
    voice: dict[str, Any] = {"engine": engine, "renderer": renderer}
    role = default_settings(JudgeSettings, max_tokens=400)
    steps_in = Interventions(
        collector=collector,
        roles=Roles(
            validator=Validator(**voice, prompt=JUDGE, settings=role),
            corrector=SelfCorrector(
                **voice, prompt=REWRITE, settings=default_settings(JudgeSettings, max_tokens=400, temperature=1.0)
            ),
            verifier=Verifier(**voice, prompts=CHECKS, settings=default_settings(VerifierSettings, max_tokens=400)),
            gate=PerplexityGate(default_settings(GateSettings, delta=5.0)),
        ),
        reweight=default_settings(ReweightSettings, eps_cal=0.2),
        settings=default_settings(InterventionSettings, corrections=corrections),
    )
    (group,) = collector.collect([story.task], 4, 0)
    (merged,) = steps_in([group], 0).groups
    return group, merged


@pytest.mark.parametrize("make", [bfcl, text_world, navigation, verifiers_lock], ids=lambda make: make.__name__)
def test_an_all_failed_group_is_corrected_and_succeeds(make: Callable[[], Story]) -> None:
    story = make()
    group, merged = played(story, corrections=6)
    assert [trajectory.reward for trajectory in group.sampled] == [0.0] * 4
    assert group.all_failed(1.0)
    assert sorted(trajectory.reward for trajectory in merged.trajectories) == [0.0, 0.0, 1.0, 1.0]
    records = merged.interventions
    funnel = Counter(record.outcome for record in records)
    assert funnel[Outcome.ACCEPTED] == 2
    assert set(funnel) == {Outcome.ACCEPTED, Outcome.NOT_CHOSEN, Outcome.LEAKED}
    assert sum(funnel.values()) == 12
    for record in records:
        assert record.step == story.at
        assert record.original == story.misstep
        assert record.evidence.failed
        assert record.evidence.reference is None
    child = next(record.child for record in records if record.outcome is Outcome.ACCEPTED)
    assert child is not None
    assert [turn.message.content for turn in child.turns] == list(story.right)
    assert [turn.author for turn in child.turns][story.at] is Author.CORRECTOR
    # rho is exp(-0.25 + 0.5) = 1.28, clipped to 1.2.
    assert set(child.correction_weights) == {1.2}
    rewards = torch.tensor([trajectory.reward for trajectory in merged.trajectories])
    advantages = group_advantages(rewards, baseline=Baseline.mean, normalize_std=True, eps=0.0).tolist()
    samples = to_samples(merged, advantages, Scope.all)
    # Rewards 0, 0, 1, 1: mean 0.5, standard deviation sqrt(1 / 3).
    assert sorted(round(sample.advantage, 4) for sample in samples) == [-0.866, -0.866, 0.866, 0.866]
    weights = {author: weight for one in samples for author, weight in zip(one.authors, one.weights, strict=True)}
    assert weights == {Author.ENVIRONMENT: 1.0, Author.POLICY: 1.0, Author.CORRECTOR: 1.2}


@pytest.mark.parametrize("make", [bfcl, text_world, navigation, verifiers_lock], ids=lambda make: make.__name__)
def test_without_a_good_correction_nothing_changes(make: Callable[[], Story]) -> None:
    story = make()
    bad = dataclasses.replace(story, right=[*story.right[: story.at], story.misstep])
    group, merged = played(bad, corrections=1)
    assert merged.trajectories == group.sampled
    assert {record.outcome for record in merged.interventions} <= {Outcome.UNCHANGED, Outcome.LEAKED}
    assert merged.interventions
