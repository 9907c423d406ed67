"""A tool's result as text: what a model can read is shown, everything else is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """`failed` means that the server reports an error, such as a wrong argument; the connection is intact."""

    text: str
    failed: bool


def tool_answer(result: Any) -> ToolAnswer:
    """The SDK's `CallToolResult` as an answer. Structured content is shown only if no part is text, since servers
    repeat it there."""
    parts = [_shown(part) for part in result.content]
    if result.structured_content is not None and not any(part.type == "text" for part in result.content):
        parts.append(json.dumps(result.structured_content, sort_keys=True, ensure_ascii=False))
    return ToolAnswer(text="\n".join(parts), failed=bool(result.is_error))


def _shown(part: Any) -> str:
    if part.type == "text":
        return part.text
    if part.type == "resource_link":
        details = [part.title or part.name, part.mime_type, part.description]
        return f"[link {part.uri}: {', '.join(text for text in details if text)}]"
    if part.type == "resource":
        text = getattr(part.resource, "text", None)
        if text is not None:
            return f"[resource {part.resource.uri}]\n{text}"
        return f"[resource {part.resource.uri}: {part.resource.mime_type or 'binary'}, not shown]"
    return f"[{part.type}: {part.mime_type}, not shown]"
