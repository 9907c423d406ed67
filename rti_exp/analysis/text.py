"""Text of models and errors on one line of a table or a chart."""

from __future__ import annotations

import hashlib
import unicodedata


def plain_text(text: str) -> str:
    """One line without control characters, which a terminal would interpret."""
    return " ".join("".join(" " if unicodedata.category(char)[0] == "C" else char for char in text).split())


def short_name(text: str, max_length: int = 40) -> str:
    """`text` if it is one short line; otherwise its beginning and a digest, so that different texts stay different."""
    plain = plain_text(text)
    if plain == text and len(text) <= max_length:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:6]
    return f"{plain[: max_length - 7]}~{digest}"
