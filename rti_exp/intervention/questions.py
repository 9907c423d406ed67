"""Questions to a judge (validator or verifier), asked in batches, with retries for unreadable answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rti_exp.config.role_settings import RoleSettings
from rti_exp.engines.base import Engine, GenerateRequest, Sampling
from rti_exp.engines.failed_requests import generate_each
from rti_exp.intervention.answers import Unreadable
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Completion, Failure, FailureKind

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`seed(attempt)` seeds attempt number `attempt`, counted from 0."""

    prompt_ids: tuple[int, ...]
    seed: Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[Value]):
    """The text of the last attempt, and its value; `value` is None if the text could not be read.

    If the question was too long or its engine lost it, `text` is the reason in brackets.
    """

    text: str
    value: Value | None
    failure: Failure | None = None
    """Set if the engine lost the question."""


def ask(
    questions: Sequence[Question],
    read: Callable[[str], Value],
    *,
    engine: Engine,
    renderer: Renderer,
    settings: RoleSettings,
) -> list[Answer[Value]]:
    """The answers to `questions`, in order: one engine call, and one more for each round of retries.

    `read` raises `Unreadable` for an invalid answer. Retries are sampled at temperature 1 with other seeds. A question
    longer than the model's context window has no answer and is not repeated.

    Raises:
        EngineUnavailable: the engine stayed down.
    """
    answers: dict[int, Answer[Value]] = {}
    open_questions = list(range(len(questions)))
    for number in range(1 + settings.retries):
        if not open_questions:
            break
        sampling = Sampling(
            temperature=settings.temperature if number == 0 else 1.0,
            max_tokens=settings.max_tokens,
            stop_ids=renderer.stop_ids,
        )
        requests = [
            GenerateRequest(
                prompt_ids=questions[index].prompt_ids,
                sampling=sampling,
                seed=questions[index].seed(number),
                log_probs=False,
            )
            for index in open_questions
        ]
        unreadable: list[int] = []
        for index, completion in zip(open_questions, generate_each(engine, requests), strict=True):
            if isinstance(completion, Failure):
                answers[index] = _unanswered(completion)
                continue
            answers[index] = _answer(completion, read, renderer)
            if answers[index].value is None:
                unreadable.append(index)
        open_questions = unreadable
    return [answers[index] for index in range(len(questions))]


def _unanswered(failure: Failure) -> Answer[Any]:
    if failure.kind is FailureKind.TOO_LONG:
        return Answer(text=f"[not asked: {failure.reason}]", value=None)
    return Answer(text=f"[lost: {failure.reason}]", value=None, failure=failure)


def _answer(completion: Completion, read: Callable[[str], Value], renderer: Renderer) -> Answer[Value]:
    text = renderer.message(completion.token_ids).content
    # A cut-off answer does not count, even if the remaining part can be parsed.
    if completion.stop_reason != "stop":
        return Answer(text=text, value=None)
    try:
        return Answer(text=text, value=read(text))
    except Unreadable:
        return Answer(text=text, value=None)
