"""The prompt of a later turn: appended to the earlier ids, or a new segment where the chat template cannot append."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Message, Turn, segment_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What an episode shows before the first turn."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The ids before a turn's action: its whole prompt if it begins a segment, else those after the previous turn."""

    ids: tuple[int, ...]
    new_segment: bool = False


def context_after(renderer: Renderer, turns: Sequence[Turn], opening: Opening) -> Context:
    """The context of the turn that follows `turns` (at least one)."""
    last = turns[-1]
    if not (isinstance(renderer, ChatRenderer) and renderer.rerenders):
        closed = bool(last.action_ids) and last.action_ids[-1] in renderer.stop_ids
        return Context(ids=renderer.appended(last.observations, closed=closed))
    later = [message for turn in turns for message in (turn.message, *turn.observations)]
    prompt_ids, earlier_ids = renderer.conversation(opening.messages, opening.tools, later), segment_ids(turns)
    if prompt_ids[: len(earlier_ids)] == earlier_ids:
        return Context(ids=prompt_ids[len(earlier_ids) :])
    return Context(ids=prompt_ids, new_segment=True)
