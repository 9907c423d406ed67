"""The prompt of a later turn: appended to the ids so far, or a new segment where the chat template does not extend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rti_exp.rollout.chat_render import ChatRenderer
from rti_exp.rollout.render import Renderer
from rti_exp.types import Message, Turn, segment_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What an episode shows before the first turn."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The ids before a turn's action: all of them if it begins a segment, else those after the turn before."""

    ids: tuple[int, ...]
    new_segment: bool = False


def rerenders(renderer: Renderer) -> bool:
    return isinstance(renderer, ChatRenderer) and renderer.rerenders


def context_after(renderer: Renderer, turns: Sequence[Turn], opening: Opening | None) -> Context:
    """The context of the turn after `turns` (at least one).

    Args:
        opening: needed by a renderer that `rerenders`.

    Raises:
        ValueError: it is needed and not given.
    """
    last = turns[-1]
    if not (isinstance(renderer, ChatRenderer) and renderer.rerenders):
        closed = bool(last.action_ids) and last.action_ids[-1] in renderer.stop_ids
        return Context(ids=renderer.appended(last.observations, closed=closed))
    if opening is None:
        raise ValueError("a renderer that renders the whole conversation needs the episode's opening")
    later = [message for turn in turns for message in (turn.message, *turn.observations)]
    whole, so_far = renderer.conversation(opening.messages, opening.tools, later), segment_ids(turns)
    if whole[: len(so_far)] == so_far:
        return Context(ids=whole[len(so_far) :])
    return Context(ids=whole, new_segment=True)
