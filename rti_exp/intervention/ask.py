"""Asking a judge (validator, verifier) many questions at once, with retries for unreadable answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rti_exp.config.settings import RoleSettings
from rti_exp.engines.base import Engine, GenerateRequest, Sampling
from rti_exp.engines.fitting import Lost, TooLong, generate_fitting
from rti_exp.intervention.answers import Unreadable
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Completion

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`seed(number)` seeds try `number`; 0 is the first."""

    prompt_ids: tuple[int, ...]
    seed: Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[Value]):
    """`text` is the last try's; `value` is None when it could not be read.

    `text` is the reason in brackets if the question was too long to be asked, or `lost`: its engine gave no answer.
    """

    text: str
    value: Value | None
    lost: bool = False


def ask(
    questions: Sequence[Question],
    read: Callable[[str], Value],
    *,
    engine: Engine,
    renderer: Renderer,
    settings: RoleSettings,
) -> list[Answer[Value]]:
    """The answers to `questions`, in their order: one engine call, and one more for each round of retries.

    `read` raises `Unreadable` for what is no answer. Retries are drawn at temperature 1 with other seeds. A question
    that the model has no positions for has no answer, and is not asked again.

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
        unread: list[int] = []
        for index, completion in zip(open_questions, generate_fitting(engine, requests), strict=True):
            if isinstance(completion, TooLong):
                answers[index] = Answer(text=f"[not asked: {completion.why}]", value=None)
                continue
            if isinstance(completion, Lost):
                answers[index] = Answer(text=f"[lost: {completion.why}]", value=None, lost=True)
                continue
            answers[index] = _answer(completion, read, renderer)
            if answers[index].value is None:
                unread.append(index)
        open_questions = unread
    return [answers[index] for index in range(len(questions))]


def _answer(completion: Completion, read: Callable[[str], Value], renderer: Renderer) -> Answer[Value]:
    text = renderer.message(completion.token_ids).content
    # What was cut off is no answer, even if the part that is there can be parsed.
    if completion.stop_reason != "stop":
        return Answer(text=text, value=None)
    try:
        return Answer(text=text, value=read(text))
    except Unreadable:
        return Answer(text=text, value=None)
