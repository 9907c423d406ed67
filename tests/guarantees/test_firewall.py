"""The evidence firewall: what the roles are told reaches no prompt of a rollout, a continuation or an evaluation.

Every environment of conf/env that can be made here is walked. Each string of its evidence is a canary; besides, the
environment's own strings are looked for. The policy is a script that fails, so that there is something to correct.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rti_exp.config.check import check
from rti_exp.config.compose import composed
from rti_exp.config.defaults import default_settings
from rti_exp.config.job_settings import LimitSettings
from rti_exp.config.paths import assets_root
from rti_exp.config.settings import EvidenceChoice, GateSettings, InterventionSettings, RolloutSettings, SettingsError
from rti_exp.envs.base import Environment, Episode, StepResult
from rti_exp.experiment.parts import build_environment, default_environment
from rti_exp.training.failure_limits import require_valid_rollouts
from rti_exp.types import Evidence, EvidenceLevel, Group, Message, Task
from tests.support.interventions import HARMFUL, CharRenderer, RoleEngine, _role, fixed, interventions, records

NAMES = sorted(path.stem for path in assets_root().joinpath("conf", "env").glob("*.yaml"))
CANARY = "canary-5d1e7"
ROLLOUT = default_settings(RolloutSettings, max_tokens=200, max_context=10_000_000)
TASKS = 2


class WholeRenderer(CharRenderer):
    """Renders everything that an episode shows, tools and system messages too."""

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        shown = Message(role="user", content=json.dumps(list(tools), ensure_ascii=False))
        return super().opening([shown, *messages], ())


class Canaries:
    """An environment whose evidence is canaries, one for each string; `told` are the real strings, `asked` counts."""

    def __init__(self, world: Environment) -> None:
        self.world, self.max_turns = world, min(world.max_turns, 6)
        self.asked = 0
        self.told: set[str] = set()

    def tasks(self, split: str) -> Sequence[Task]:
        return self.world.tasks(split)

    def start(self, task: Task) -> Canaried:
        return Canaried(self, self.world.start(task))


class Canaried:
    def __init__(self, world: Canaries, episode: Episode) -> None:
        self.world, self.episode = world, episode

    @property
    def messages(self) -> Sequence[Message]:
        return self.episode.messages

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self.episode.tools

    def step(self, message: Message) -> StepResult:
        return self.episode.step(message)

    def state_hash(self) -> str:
        return self.episode.state_hash()

    def fork(self, messages: Sequence[Message]) -> Canaried:
        return Canaried(self.world, self.episode.fork(messages))

    def evidence(self, level: EvidenceLevel) -> Evidence:
        self.world.asked += 1
        real = self.episode.evidence(level)
        self.world.told |= {*real.rubric, *real.failed, *([real.reference] if real.reference else [])}
        return Evidence(
            level=level,
            rubric=tuple(f"{CANARY}-rubric-{place}" for place in range(max(1, len(real.rubric)))),
            failed=(f"{CANARY}-failed",),
            reference=f"{CANARY}-reference" if level == "reference" else None,
        )


def stumble(prompt: str, seed: int) -> str:
    """A policy that calls what is not there, and then gives up."""
    turns = prompt.count("<assistant>")
    return '{"name": "no_such_tool", "arguments": {}}' if turns < 2 else f"I give up, {seed % 7}."


class HarshJudge:
    """Scores everything 0."""

    def reply(self, messages: Sequence[Message], **options: Any) -> Any:
        answer = Message(role="assistant", content=json.dumps({"score": 0.0, "reasoning": "so"}))
        return type("Reply", (), {"message": answer})()


def claw_eval(folder: Path) -> Canaries:
    """Claw-Eval on a checkout of its format, which the benchmark's own is not shipped with."""
    for package in ("fastapi", "uvicorn"):
        pytest.importorskip(package, reason="needs the extra claw")
    from tests.support.claw_checkout import task_node, write_checkout

    root = write_checkout(folder, [task_node(f"T00{number}_notes") for number in range(1, 6)])
    return Canaries(
        default_environment("claw_eval", root=str(root), judge_model=HarshJudge(), seconds=120.0, grader_seconds=120.0)
    )  # pyright: ignore


def world_of(name: str, folder: Path) -> Canaries:
    if name == "claw_eval":
        return claw_eval(folder)
    try:
        config = check(composed([f"env={name}"]))
        world = build_environment(config.env, config.env_timeout, isolated=False)
        return Canaries(world)
    except SettingsError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[name if name == "town" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Canaries:
    return world_of(request.param, tmp_path)


def play(world: Canaries, engine: RoleEngine, *, purpose: str, split: str) -> tuple[list[Group], Any]:
    pipeline = interventions(
        engine,
        world,  # pyright: ignore[reportArgumentType]
        gate=default_settings(GateSettings, delta=float("inf")),
        settings=default_settings(InterventionSettings, corrections=1, evidence=EvidenceChoice.reference),
        rollout=ROLLOUT,
    )
    collector, roles = pipeline.interventions.collector, pipeline.interventions.roles
    renderer = engine.renderer = WholeRenderer()
    for part in (roles.validator, roles.verifier, roles.corrector, collector):
        part.renderer = renderer  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    groups = collector.collect(world.tasks(split)[:TASKS], 2, 1, purpose=purpose)
    require_valid_rollouts(
        groups, "here", default_settings(LimitSettings, env_failures=1.0)
    )  # not all; some evaluators raise
    return groups, pipeline


def prompts(engine: RoleEngine) -> dict[str, list[str]]:
    """All prompts that were asked for an answer, by who was asked."""
    found: dict[str, list[str]] = {}
    for request in engine.requests:
        text = engine.renderer.show(request.prompt_ids)
        found.setdefault(_role(text), []).append(text)
    return found


def test_no_evidence_reaches_a_rollout_or_a_continuation(world: Canaries) -> None:
    engine = RoleEngine(judge=fixed(HARMFUL), rewrite=fixed("Let me think again."), policy=stumble)
    groups, pipeline = play(world, engine, purpose="rollout", split="train")
    assert world.asked == 0
    before = len(engine.requests)
    made = pipeline(groups, 1)
    attempts = records(made)
    if not attempts:
        pytest.skip("no group failed as a whole")
    assert world.asked > 0
    asked = prompts(engine)
    assert len(engine.requests) > before
    for role in ("judge", "rewrite", "gold", "leak"):  # the canaries sing where they should, so that they can be heard
        assert asked[role]
        assert all(f"{CANARY}-rubric-0" in text and f"{CANARY}-reference" in text for text in asked[role])
    for text in asked["policy"]:
        assert CANARY not in text
    children = [one.child for one in attempts if one.child is not None]
    assert children, [one.error for one in attempts]
    for child in children:
        ids = child.prompt_ids(len(child.turns) - 1)
        assert CANARY not in engine.renderer.show(ids)
    rollout_scores = [
        score for score in engine.scores if "<system>rewrite:" not in engine.renderer.show(score.prompt_ids)
    ]
    assert len(rollout_scores) == len(engine.scores) / 2
    assert all(CANARY not in engine.renderer.show(score.prompt_ids) for score in rollout_scores)


def test_the_environments_own_evidence_is_in_no_rollout_prompt(world: Canaries) -> None:
    """Strings of the evidence as they are, but for those that the task itself says."""
    engine = RoleEngine(judge=fixed(HARMFUL), rewrite=fixed("Let me think again."), policy=stumble)
    groups, pipeline = play(world, engine, purpose="rollout", split="train")
    if not records(pipeline(groups, 1)):
        pytest.skip("no group failed as a whole")
    starts = [world.start(group.task) for group in groups]
    openings = "\n".join(message.content for start in starts for message in start.messages)
    openings += json.dumps([list(start.tools) for start in starts], ensure_ascii=False)
    secrets = {text for text in world.told if len(text) > 3 and text not in openings}
    assert secrets
    for text in prompts(engine)["policy"]:
        assert not [secret for secret in secrets if secret in text]


def test_an_evaluation_asks_for_no_evidence_and_no_role(world: Canaries) -> None:
    engine = RoleEngine(judge=fixed(HARMFUL), policy=stumble)
    play(world, engine, purpose="eval", split="heldout")
    assert world.asked == 0
    assert prompts(engine).keys() == {"policy"}
    assert engine.scores == []


def test_the_firewall_notices_a_leak(tmp_path: Path) -> None:
    """An environment that puts its evidence into an observation is found out."""

    class Leaky(Canaried):
        def step(self, message: Message) -> StepResult:
            result = self.episode.step(message)
            hint = Message(role="tool", content=f"hint: {self.evidence('rubric').text}")
            return StepResult(observations=(*result.observations, hint), done=result.done, reward=result.reward)

    class LeakyWorld(Canaries):
        def start(self, task: Task) -> Canaried:
            return Leaky(self, self.world.start(task))

    world = LeakyWorld(world_of("town", tmp_path).world)
    engine = RoleEngine(judge=fixed(HARMFUL), policy=stumble)
    play(world, engine, purpose="eval", split="heldout")
    assert world.asked > 0
    assert any(CANARY in text for text in prompts(engine)["policy"])
