"""A renderer with one id per character, an engine that answers by rules, and groups of failed episodes.

`CharRenderer` shows exactly which ids a prompt is made of: `show(ids)` of a conversation is
`<user>box a<end><assistant>...<end>`. `RoleEngine` reads that text and answers as the rule of the role says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rti_exp.config.defaults import default_settings
from rti_exp.config.role_settings import JudgeSettings, RolePrompt, VerifierSettings
from rti_exp.config.settings import GateSettings, InterventionSettings, ReweightSettings, RolloutSettings
from rti_exp.engines.base import EngineUnavailable, GenerateRequest, RequestsFailed, ScoreRequest
from rti_exp.intervention.corrector import Corrector, SelfCorrector
from rti_exp.intervention.gate import PerplexityGate
from rti_exp.intervention.pipeline import Intervened, Interventions, Roles
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import (
    Author,
    Completion,
    Group,
    Intervention,
    Message,
    Status,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)
from tests.support.fakes import GuessWorld, call, right_texts, wrong_texts

ROLES = ("system", "user", "assistant", "tool")
MAX_CHARACTER = 0x110000

JUDGE = RolePrompt(role="system", text="judge: {evidence}")
REWRITE = RolePrompt(role="system", text="rewrite: {evidence} | {reason}")
CHECKS = {
    "gold": RolePrompt(role="system", text="gold? {evidence}"),
    "leak": RolePrompt(role="system", text="leak? {evidence}"),
    "plausible": RolePrompt(role="system", text="plausible?"),
}
ROLE = default_settings(JudgeSettings, max_tokens=200)
ROLLOUT = default_settings(RolloutSettings, max_tokens=200, max_context=1_000_000)
HARMFUL = '{"harmful": true, "reason": "the wrong key"}'
FINE = '{"harmful": false}'
PASS = '{"pass": true}'
REJECT = '{"pass": false}'


class CharRenderer:
    """Character c is id ord(c) + shift; a turn ends with `end`. Another `shift` is another tokenizer."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift
        self.end = MAX_CHARACTER + shift
        self.headers = {role: self.end + 1 + number for number, role in enumerate(ROLES)}

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self.end,)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(ord(character) + self.shift for character in text)

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return self.appended(messages, closed=True)

    def appended(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        ids = () if closed else (self.end,)
        for message in messages:
            ids += (self.headers[message.role], *self.encode(message.content), self.end)
        return (*ids, self.headers["assistant"])

    def action_ids(self, text: str) -> tuple[int, ...]:
        return (*self.encode(text), self.end)

    def message(self, action_ids: Sequence[int]) -> Message:
        ids = action_ids[:-1] if action_ids and action_ids[-1] == self.end else action_ids
        text = "".join(chr(one - self.shift) for one in ids)
        if not text.startswith("{"):
            return Message(role="assistant", content=text)
        try:
            read = json.loads(text)
            return Message(
                role="assistant", content=text, tool_calls=(ToolCall(name=read["name"], arguments=read["arguments"]),)
            )
        except (ValueError, KeyError) as error:
            return Message(role="assistant", content=text, malformed=str(error))

    def show(self, ids: Sequence[int]) -> str:
        names = {self.end: "<end>", **{number: f"<{role}>" for role, number in self.headers.items()}}
        return "".join(names[one] if one in names else chr(one - self.shift) for one in ids)


@dataclass(frozen=True)
class Cut:
    """An answer that was cut off before its end."""

    text: str


Reply = Callable[[str, int], "str | Cut"]
"""From the whole prompt as text, and the seed, to an answer."""


def fixed(answer: str | Cut) -> Reply:
    return lambda prompt, seed: answer


def judge(prompt: str, seed: int) -> str:
    """Harmful is a step that takes a key."""
    step = prompt.split("<assistant>")[-2]
    return HARMFUL if '"take"' in step else FINE


def right_key(prompt: str, seed: int) -> str:
    task = next(task for task in GuessWorld().tasks("train") if f"box {task.payload['box']}<end>" in prompt)
    return right_texts(task)[0]


def approve(prompt: str, seed: int) -> str:
    return PASS


def go_on(prompt: str, seed: int) -> str:
    """The policy after the critical step: it opens the box and tells the code."""
    last = prompt.split("<tool>")[-1].removesuffix("<end><assistant>")
    if last.startswith("took"):
        return call("open")
    return last.removeprefix("code ")


@dataclass(slots=True, kw_only=True)
class RoleEngine:
    """Answers each role by its rule and notes every call; `down` names roles whose call raises.

    `positions` limits prompt and new tokens together: of requests of a role, and of those to "score".
    """

    renderer: CharRenderer = field(default_factory=CharRenderer)
    judge: Reply = judge
    rewrite: Reply = right_key
    gold: Reply = approve
    leak: Reply = approve
    plausible: Reply = approve
    policy: Reply = go_on
    log_prob: Callable[[str, str], float] = lambda prompt, text: -0.25 if "<system>rewrite:" in prompt else -0.5
    """Of each token of `text` after `prompt`."""
    down: tuple[str, ...] = ()
    positions: Mapping[str, int] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    """(what was asked, number of requests) of every call, in order."""
    requests: list[GenerateRequest] = field(default_factory=list)
    scores: list[ScoreRequest] = field(default_factory=list)
    generated_tokens: int = 0
    scored_tokens: int = 0

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        prompts = [self.renderer.show(request.prompt_ids) for request in requests]
        roles = [_role(prompt) for prompt in prompts]
        kinds = sorted(set(roles))
        lengths = [len(request.prompt_ids) + request.sampling.max_tokens for request in requests]
        self._check_lengths(roles, lengths)
        self.calls.append(("+".join(kinds), len(requests)))
        self.requests += requests
        if set(kinds) & set(self.down):
            raise EngineUnavailable("the engine is down")
        completions = [
            self._completion(getattr(self, role)(prompt, request.seed))
            for role, prompt, request in zip(roles, prompts, requests, strict=True)
        ]
        self.generated_tokens += sum(len(completion.token_ids) for completion in completions)
        return completions

    def _check_lengths(self, roles: Sequence[str], lengths: Sequence[int]) -> None:
        reasons = {
            index: f"{length} tokens are too many"
            for index, (role, length) in enumerate(zip(roles, lengths, strict=True))
            if length > self.positions.get(role, length)
        }
        if reasons:
            raise RequestsFailed.too_long(reasons)

    def _completion(self, reply: str | Cut) -> Completion:
        ids = self.renderer.encode(reply.text) if isinstance(reply, Cut) else self.renderer.action_ids(reply)
        stop_reason = "length" if isinstance(reply, Cut) else "stop"
        return Completion(token_ids=ids, log_probs=(-1.0,) * len(ids), stop_reason=stop_reason, policy_version=0)

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        lengths = [len(request.prompt_ids) + len(request.token_ids) for request in requests]
        self._check_lengths(["score"] * len(requests), lengths)
        self.calls.append(("score", len(requests)))
        self.scores += requests
        if "score" in self.down:
            raise EngineUnavailable("the engine is down")
        self.scored_tokens += sum(len(request.token_ids) for request in requests)
        show = self.renderer.show
        return [(self.log_prob(show(one.prompt_ids), show(one.token_ids)),) * len(one.token_ids) for one in requests]

    def sync(self, policy_version: int) -> None:
        pass


def _role(prompt: str) -> str:
    last = prompt.split("<system>")[-1] if "<system>" in prompt else ""
    for start, role in (("judge: ", "judge"), ("rewrite: ", "rewrite"), ("gold? ", "gold"), ("leak? ", "leak")):
        if last.startswith(start):
            return role
    return "plausible" if last.startswith("plausible?") else "policy"


def episode(
    world: GuessWorld, task: Task, member: int, texts: Sequence[str], renderer: Renderer | None = None
) -> Trajectory:
    """The trajectory of an episode in which the policy said `texts`."""
    renderer = CharRenderer() if renderer is None else renderer
    live = world.start(task)
    context = renderer.opening(live.messages, live.tools)
    turns: list[Turn] = []
    reward, parts, done = 0.0, {}, False
    for text in texts:
        action_ids, state_hash = renderer.action_ids(text), live.state_hash()
        message = renderer.message(action_ids)
        result = live.step(message)
        turns.append(
            Turn(
                context_ids=context,
                action_ids=action_ids,
                action_log_probs=(-1.0,) * len(action_ids),
                message=message,
                observations=result.observations,
                author=Author.POLICY,
                state_hash=state_hash,
            )
        )
        context = renderer.appended(result.observations, closed=True)
        reward, parts, done = result.reward, result.reward_parts, result.done
    return Trajectory(
        task_id=task.id,
        member=member,
        turns=tuple(turns),
        status=Status.OK if done else Status.TRUNCATED,
        reward=reward,
        reward_parts=parts,
    )


def broken(task: Task, member: int) -> Trajectory:
    return Trajectory(
        task_id=task.id, member=member, turns=(), status=Status.INFRASTRUCTURE_FAILURE, reward=float("nan"), error="x"
    )


def group_of(task: Task, trajectories: Sequence[Trajectory]) -> Group:
    return Group(task=task, sampled=tuple(trajectories), trajectories=tuple(trajectories))


def failed_group(world: GuessWorld, task: Task, size: int = 2) -> Group:
    return group_of(task, [episode(world, task, member, wrong_texts(task)) for member in range(size)])


def interventions(
    engine: RoleEngine,
    world: GuessWorld,
    *,
    corrector: Corrector | str | None = "self",
    gate: GateSettings | None = None,
    reweight: ReweightSettings | None = None,
    verifier: VerifierSettings | None = None,
    settings: InterventionSettings | None = None,
    role: JudgeSettings = ROLE,
    rollout: RolloutSettings = ROLLOUT,
    seed: int = 0,
) -> Play:
    """The whole pipeline, played by `engine`, with one correction per trajectory by default."""
    renderer = CharRenderer()
    own = SelfCorrector(engine=engine, renderer=renderer, prompt=REWRITE, settings=role)
    roles = Roles(
        validator=Validator(engine=engine, renderer=renderer, prompt=JUDGE, settings=role),
        corrector=own if isinstance(corrector, str) else corrector,
        verifier=Verifier(
            engine=engine,
            renderer=renderer,
            prompts=CHECKS,
            settings=replace(
                verifier or default_settings(VerifierSettings), temperature=role.temperature, max_tokens=role.max_tokens
            ),
        ),
        gate=PerplexityGate(default_settings(GateSettings) if gate is None else gate),
    )
    return Play(
        Interventions(
            collector=Collector(environment=world, engine=engine, renderer=renderer, settings=rollout, seed=seed),
            roles=roles,
            reweight=default_settings(ReweightSettings, eps_cal=0.5) if reweight is None else reweight,
            settings=default_settings(InterventionSettings, corrections=1) if settings is None else settings,
        )
    )


class Play:
    """Interventions that keep their last result."""

    def __init__(self, interventions: Interventions) -> None:
        self.interventions = interventions
        self.result = Intervened(groups=[])

    def __call__(self, groups: Sequence[Group], iteration: int) -> list[Group]:
        self.result = self.interventions(groups, iteration)
        return self.result.groups


def records(groups: Sequence[Group]) -> list[Intervention]:
    return [record for group in groups for record in group.interventions]
