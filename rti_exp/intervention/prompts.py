"""Role prompts: filled in one pass, so that data is never read for placeholders, and appended to exact ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from rti_exp.config.role_settings import RolePrompt
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Message, Role

_PLACEHOLDER = re.compile(r"\{(evidence|reason)\}")


def fill(template: str, *, evidence: str, reason: str) -> str:
    """`template` with {evidence} and {reason} replaced; all other braces, also those in the data, stay."""
    values = {"evidence": evidence, "reason": reason}
    # One pass: a "{reason}" inside the evidence is data.
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def role_message(prompt: RolePrompt, *, evidence: str, reason: str = "") -> Message:
    return Message(role=cast(Role, prompt.role), content=fill(prompt.text, evidence=evidence, reason=reason))


def is_closed(action_ids: Sequence[int], renderer: Renderer) -> bool:
    """Whether a turn ends with a stop id (else it was cut off)."""
    return bool(action_ids) and action_ids[-1] in renderer.stop_ids


def with_request(ids: tuple[int, ...], request: Message, renderer: Renderer) -> tuple[int, ...]:
    """A conversation whose last ids are an assistant turn, with a role's request appended."""
    return ids + renderer.appended([request], closed=is_closed(ids, renderer))
