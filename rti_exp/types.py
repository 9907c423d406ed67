"""The nouns of the pipeline. If you know this file, you know the program.

A `Task` is rolled out G times; the `Trajectory`s form a `Group`. If every valid trajectory failed, `Intervention`s
are attempted. A successful one adds a new trajectory, forked from a failed one, to the group. Each trajectory becomes a
`Sample`, samples become `Batch`es (`rti_exp.training.batch`), and batches a loss.

Worked example, one trajectory of two turns (ids are token ids):

    turn 0: context_ids [1, 9, 9, 4]   action_ids [7, 8, 2]   observations: one tool message
    turn 1: context_ids [5, 6, 4]      action_ids [3, 2]      done, reward 1.0

    token_ids  1 9 9 4 7 8 2 5 6 4 3 2      append-only: the sampled tokens are the trained tokens
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
    """The author of a token."""

    ENVIRONMENT = 0
    """Prompt, tool result, user, chat template: never trained."""
    POLICY = 1
    CORRECTOR = 2
    TEACHER = 3
    """A teacher that rolled out instead of the policy (LUFFY)."""


class Status(enum.StrEnum):
    """How a trajectory ended."""

    OK = "ok"
    TRUNCATED = "truncated"
    """Ran out of turns or tokens. Valid, with reward 0, since the environment scores finished episodes only."""
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    """The environment or an engine broke. It has no reward, is excluded from every statistic, and is counted."""


class Outcome(enum.StrEnum):
    """The outcome of one intervention attempt; the attrition funnel counts these."""

    NO_FAULT = "no_fault"
    NO_VERDICT = "no_verdict"
    NO_CORRECTION = "no_correction"
    """No usable correction: empty, cut off, longer than a turn may be, or beyond a model's context window; `error` says
    which."""
    ROLE_UNAVAILABLE = "role_unavailable"
    """The engine of a role stayed down; the attempt is lost, the run continues."""
    ROLE_FAILED = "role_failed"
    """A role raised an exception, given in `error`."""
    UNCHANGED = "unchanged"
    LEAKED = "leaked"
    MISSES_REQUIREMENT = "misses_requirement"
    IMPLAUSIBLE = "implausible"
    NO_CHECK = "no_check"
    """No check failed, but the answer to one could not be read."""
    TOO_PERPLEXING = "too_perplexing"
    REPLAY_MISMATCH = "replay_mismatch"
    CONTINUATION_FAILED = "continuation_failed"
    """The environment broke during the continued rollout."""
    STILL_FAILED = "still_failed"
    NOT_CHOSEN = "not_chosen"
    """Succeeded, but another correction of the same trajectory was chosen for the merge."""
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]
    opaque: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What a remote endpoint sent with the call and expects back: its id, signatures. Not part of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. `malformed` says why a tool call of the turn could not be read; those that could are in
    `tool_calls`. `thinking` is the assistant's text before `content`, which environments do not see."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: str | None = None
    thinking: str = ""
    opaque: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What a remote endpoint sent with the message and expects back, e.g. signed reasoning. Not part of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task. `payload` is plain JSON with everything that the environment needs to start an episode."""

    id: str
    family: str
    split: str
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An engine's output. `log_probs` are the policy's, of the distribution that sampled."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    stop_reason: Literal["stop", "length"]
    policy_version: int
    importance_weights: tuple[float, ...] = ()
    """Truncated pi / pi_sampler of each token. Empty means all ones: sampler and scorer agree, or no correction is
    applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One step: the ids appended before it, the ids that the author wrote, and the environment's answer.

    The full prompt of turn k is the concatenation of `context_ids + action_ids` of turns s..k-1 and its own
    `context_ids`, where s is the last turn up to k that begins a segment, else 0.
    """

    context_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    action_log_probs: tuple[float, ...]
    """The author's log-prob of each id under the rollout prompt, of the logits over the rollout's temperature (for a
    correction, the policy's)."""
    message: Message
    observations: tuple[Message, ...]
    author: Author
    state_hash: str
    """Hash of the environment's state before this step."""
    new_segment: bool = False
    """Whether `context_ids` is a complete new prompt, because the chat template did not extend the ids so far."""
    importance_weights: tuple[float, ...] = ()
    """As in `Completion`; empty for a correction, which was not sampled here."""


def segment_ids(turns: Sequence[Turn]) -> tuple[int, ...]:
    """All ids of the last turn's segment, through the end of its action."""
    first = max((step for step, turn in enumerate(turns) if turn.new_segment), default=0)
    ids: list[int] = []
    for turn in turns[first:]:
        ids += turn.context_ids + turn.action_ids
    return tuple(ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where a trajectory was forked: from member `parent` of the same group, before step `step`."""

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
    """rho of the corrected turn's tokens (turn `fork.step`); empty without a correction."""

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
    """Privileged information for the roles, beyond the rollout's own history.

    `rubric` lists the conditions of success, `failed` those that the trajectory did not meet, `reference` is the
    solution (level `reference` only). None of it may reach a rollout prompt.
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


class FailureKind(enum.StrEnum):
    """Why a request or a role gave no result."""

    UNAVAILABLE = "unavailable"
    """The engine gave no answer after its retries."""
    TOO_LONG = "too_long"
    """The prompt and its answer do not fit into the model's context window."""
    UNUSABLE = "unusable"
    """There is an answer, but it cannot be used: empty, cut off, or None."""
    RAISED = "raised"
    """The role's code raised an exception or broke its contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Takes the place of a result, from an engine's request to the outcome of an attempt."""

    kind: FailureKind
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The validator's answer for one trajectory. `step` is set exactly when `kind` is "harmful"."""

    kind: Literal["harmful", "no_fault", "no_verdict"]
    step: int | None = None
    reason: str = ""
    answers: tuple[str, ...] = ()
    """The raw answer for each judged step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A rewritten assistant turn. `prompt_ids` is the correction prompt, under which pi_cal is scored."""

    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    text: str
    message: Message
    source: str
    reencoded: bool = False
    """Whether its author has another tokenizer, so that its text was encoded again for the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One verifier check. `passed` is None if there is no readable answer, which counts as not passed."""

    name: Literal["gold", "leak", "plausible"]
    judge: str
    passed: bool | None
    answer: str = ""
    failure: Failure | None = None
    """Why the judge gave no answer, if its engine lost the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """One attempt, with any outcome."""

    id: str
    task_id: str
    family: str
    parent: int
    sample: int
    verdict: Verdict | None
    """None if the validator gave none: its engine was down, it raised, or the environment broke before."""
    outcome: Outcome
    evidence: Evidence
    original: str = ""
    correction: Correction | None = None
    checks: tuple[Check, ...] = ()
    log_probs: tuple[float, ...] = ()
    """Under the rollout prompt; exp(-mean) is the gate's perplexity."""
    calibration_log_probs: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    perplexity: float | None = None
    state_hash: str = ""
    child: Trajectory | None = None
    shadow: bool = False
    """True if the gate dropped it and it was continued only for the record."""
    error: str | None = None

    @property
    def step(self) -> int | None:
        return None if self.verdict is None else self.verdict.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """G trajectories of one task: as sampled, and as merged after the interventions."""

    task: Task
    sampled: tuple[Trajectory, ...]
    trajectories: tuple[Trajectory, ...]
    interventions: tuple[Intervention, ...] = ()

    def all_failed(self, success_threshold: float) -> bool:
        """Whether RTI intervenes: there are valid trajectories, and no sampled one succeeded."""
        rewards = [trajectory.reward for trajectory in self.sampled if trajectory.valid]
        return bool(rewards) and all(reward < success_threshold for reward in rewards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trajectory as equal-length token streams; `advantage` applies to all of its trained tokens."""

    token_ids: tuple[int, ...]
    authors: tuple[Author, ...]
    loss_mask: tuple[bool, ...]
    behaviour_log_probs: tuple[float, ...]
    """0.0 where the mask is False."""
    weights: tuple[float, ...]
    """rho for a corrector's tokens; otherwise 1.0 or the token's importance weight."""
    advantage: float
    task_id: str
    member: int
    segment_starts: tuple[int, ...] = (0,)
    """Where a new prompt begins; tokens before it are not visible after it."""

    def __post_init__(self) -> None:
        lengths = {
            len(stream)
            for stream in (self.token_ids, self.authors, self.loss_mask, self.behaviour_log_probs, self.weights)
        }
        if len(lengths) != 1:
            raise ValueError(f"streams of sample {self.task_id}/{self.member} differ in length: {sorted(lengths)}")
