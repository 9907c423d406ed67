"""A trajectory rendered for another model than the one that rolled it out."""

from __future__ import annotations

from rti_exp.intervention.case import Case
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Message


def rendered(case: Case, step: int, text: str, renderer: Renderer) -> tuple[int, ...]:
    """The conversation before turn `step`, then a turn with this text, in the renderer's ids.

    Turns are passed as text, since their ids belong to another tokenizer.
    """
    ids = renderer.opening(case.opening, case.tools)
    for turn in case.turns[:step]:
        ids += renderer.action_ids(turn.message.content)
        ids += renderer.appended(turn.observations, closed=True)
    return ids + renderer.action_ids(text)


def whole_text(message: Message) -> str:
    """All that an assistant wrote, thinking first: all of it is trained, so all of it is judged."""
    return f"<think>\n{message.thinking}\n</think>\n\n{message.content}" if message.thinking else message.content
