"""The nouns of the pipeline. Who knows this file knows the program.

One task's way: a `Task` is rolled out G times into `Trajectory`s, which make a `Group`. Where every
valid trajectory failed, `Intervention`s are tried; those that succeed put a new trajectory, forked from
a failed one, into the group. Each trajectory becomes a `Sample`, samples become `Batch`es
(`rti_exp.training.batch`), batches a loss.

Worked example, one trajectory of two turns (ids are token ids):

    turn 0: context_ids [1, 9, 9, 4]   action_ids [7, 8, 2]   observations: one tool message
    turn 1: context_ids [5, 6, 4]      action_ids [3, 2]      done, reward 1.0

    token_ids  1 9 9 4 7 8 2 5 6 4 3 2      append-only: exactly what was sampled is what is trained
    authors    0 0 0 0 1 1 1 0 0 0 1 1      ENVIRONMENT, POLICY, CORRECTOR
    loss_mask  F F F F T T T F F F T T      from the author, never from the role name

This module imports no torch.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
EvidenceLevel = Literal["none", "rubric", "reference"]


class Author(enum.IntEnum):
    """Who wrote a token."""

    ENVIRONMENT = 0
    """Prompt, tool result, user, chat template: never trained."""
    POLICY = 1
    CORRECTOR = 2
    TEACHER = 3
    """A teacher that rolled out in the policy's place (LUFFY)."""


class Status(enum.StrEnum):
    """How a trajectory ended."""

    OK = "ok"
    TRUNCATED = "truncated"
    """Ran out of turns or tokens. Valid, with reward 0: the environment scores finished episodes only."""
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    """The environment or an engine broke. Never a reward: left out of every statistic, and counted."""


class Outcome(enum.StrEnum):
    """What became of one intervention attempt; the attrition funnel counts these."""

    NO_FAULT = "no_fault"
    NO_VERDICT = "no_verdict"
    NO_CORRECTION = "no_correction"
    """Nothing usable was written: empty, cut off before its end, longer than a turn may be, or without positions for
    it or for its prompt in a model; `error` says which."""
    ROLE_UNAVAILABLE = "role_unavailable"
    """The engine of a role stayed down; the attempt is lost, the run goes on."""
    ROLE_FAILED = "role_failed"
    """A role raised; `error` says what."""
    UNCHANGED = "unchanged"
    LEAKED = "leaked"
    MISSES_REQUIREMENT = "misses_requirement"
    IMPLAUSIBLE = "implausible"
    NO_CHECK = "no_check"
    """No check said no, but the answer of one could not be read."""
    TOO_PERPLEXING = "too_perplexing"
    REPLAY_MISMATCH = "replay_mismatch"
    CONTINUATION_FAILED = "continuation_failed"
    """The environment broke while the corrected rollout went on."""
    STILL_FAILED = "still_failed"
    NOT_CHOSEN = "not_chosen"
    """Succeeded, but another correction of the same trajectory was drawn for the merge."""
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. `malformed` says why a tool call in `content` could not be read; `thinking` is what an
    assistant wrote before `content` and no environment is shown."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: str | None = None
    thinking: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to do. `payload` is plain JSON: all that the environment needs to start an episode."""

    id: str
    family: str
    split: str
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine generated. `log_probs` are the policy's at temperature 1, whatever the sampling."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    stop_reason: Literal["stop", "length"]
    policy_version: int
    importance_weights: tuple[float, ...] = ()
    """pi / pi_sampler of each token, truncated; () is 1 each: what sampled is what scores, or it is left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One step: the ids appended before it, the ids the author wrote, what the environment answered.

    The full prompt of turn k is the concatenation of `context_ids + action_ids` of turns s..k-1 and its own
    `context_ids`, where s is the last turn up to k that begins a segment, else 0.
    """

    context_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    action_log_probs: tuple[float, ...]
    """Its author's under the rollout prompt at temperature 1 (a correction's are the policy's); one for each id."""
    message: Message
    observations: tuple[Message, ...]
    author: Author
    state_hash: str
    """Hash of the environment's state before this step."""
    new_segment: bool = False
    """Whether `context_ids` is a whole new prompt, since the chat template did not extend the ids so far."""
    importance_weights: tuple[float, ...] = ()
    """As its completion's; () where nobody sampled it (a correction), or nothing is to be weighed."""


def segment_ids(turns: Sequence[Turn]) -> tuple[int, ...]:
    """All ids of the segment that the last of these turns is in, through the end of its action."""
    first = max((step for step, turn in enumerate(turns) if turn.new_segment), default=0)
    ids: list[int] = []
    for turn in turns[first:]:
        ids += turn.context_ids + turn.action_ids
    return tuple(ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where a trajectory left its parent: member `parent` of the same group, before step `step`."""

    parent: int
    step: int
    intervention_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A finished, scored episode. `reward` is NaN exactly for infrastructure failures."""

    task_id: str
    member: int
    turns: tuple[Turn, ...]
    status: Status
    reward: float
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    fork: Fork | None = None
    error: str | None = None
    correction_weights: tuple[float, ...] = ()
    """rho of the corrected turn's tokens (turn `fork.step`); empty when nothing was corrected."""

    @property
    def valid(self) -> bool:
        return self.status is not Status.INFRASTRUCTURE_FAILURE

    def has_turn_by(self, author: Author) -> bool:
        return any(turn.author is author for turn in self.turns)

    def prompt_ids(self, step: int) -> tuple[int, ...]:
        """The full prompt of turn `step`: all ids of its segment before its action."""
        turn = self.turns[step]
        return turn.context_ids if turn.new_segment else segment_ids(self.turns[:step]) + turn.context_ids

    @property
    def generated_tokens(self) -> int:
        return sum(len(turn.action_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the roles may be told beyond the rollout's own history.

    `rubric` are the conditions of success, `failed` those that the trajectory did not meet, `reference`
    the solution (level `reference` only). None of it may reach a rollout prompt.
    """

    level: EvidenceLevel
    rubric: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    reference: str | None = None

    @property
    def text(self) -> str:
        """All of the evidence as one line, for prompts and for the leak rule."""
        parts = ["; ".join(self.rubric)]
        if self.failed:
            parts.append("failed: " + ", ".join(self.failed))
        if self.reference:
            parts.append("reference: " + self.reference)
        return " | ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The validator's answer for one trajectory. `step` is set exactly when `kind` is "harmful".

    "unavailable": its engine lost a question, and `reason` says why.
    """

    kind: Literal["harmful", "no_fault", "no_verdict", "unavailable"]
    step: int | None = None
    reason: str = ""
    answers: tuple[str, ...] = ()
    """The raw answer for each step that was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A rewritten assistant turn. `prompt_ids` is the correction prompt that pi_cal is scored under."""

    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    text: str
    message: Message
    source: str
    reencoded: bool = False
    """Whether it was written in another tokenizer's ids, and its text encoded anew for the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One verifier check. `passed` is None when the answer could not be read (counts as not passed), or was `lost`."""

    name: Literal["gold", "leak", "plausible"]
    judge: str
    passed: bool | None
    answer: str = ""
    lost: bool = False
    """Its judge's engine gave no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """One attempt, whatever became of it."""

    id: str
    task_id: str
    family: str
    parent: int
    sample: int
    verdict: Verdict
    outcome: Outcome
    evidence: Evidence
    original: str = ""
    correction: Correction | None = None
    checks: tuple[Check, ...] = ()
    log_probs: tuple[float, ...] = ()
    """Under the rollout prompt; exp(-mean) is the perplexity that the gate compares."""
    calibration_log_probs: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    perplexity: float | None = None
    state_hash: str = ""
    child: Trajectory | None = None
    shadow: bool = False
    """True if the gate dropped it and it was continued for the record only."""
    error: str | None = None

    @property
    def step(self) -> int | None:
        return self.verdict.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """G trajectories of one task: as sampled, and as merged after the interventions."""

    task: Task
    sampled: tuple[Trajectory, ...]
    trajectories: tuple[Trajectory, ...]
    interventions: tuple[Intervention, ...] = ()

    def all_failed(self, success_threshold: float) -> bool:
        """Whether RTI may step in: there are valid trajectories and none of the sampled ones succeeded."""
        rewards = [trajectory.reward for trajectory in self.sampled if trajectory.valid]
        return bool(rewards) and all(reward < success_threshold for reward in rewards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trajectory as equal-length token streams; `advantage` holds for all of its trained tokens."""

    token_ids: tuple[int, ...]
    authors: tuple[Author, ...]
    loss_mask: tuple[bool, ...]
    behaviour_log_probs: tuple[float, ...]
    """0.0 where the mask is False."""
    weights: tuple[float, ...]
    """rho where a corrector wrote; elsewhere 1.0, or the token's importance weight."""
    advantage: float
    task_id: str
    member: int
    segment_starts: tuple[int, ...] = (0,)
    """Where a new prompt begins: nothing before it is seen from there on."""

    def __post_init__(self) -> None:
        lengths = {
            len(stream)
            for stream in (self.token_ids, self.authors, self.loss_mask, self.behaviour_log_probs, self.weights)
        }
        if len(lengths) != 1:
            raise ValueError(f"streams of sample {self.task_id}/{self.member} differ in length: {sorted(lengths)}")
