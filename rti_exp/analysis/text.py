"""Text of models and errors made fit for one line of a table or a chart."""

from __future__ import annotations

import hashlib
import unicodedata


def plain_text(text: str) -> str:
    """One line without control characters, which a terminal would obey."""
    return " ".join("".join(" " if unicodedata.category(char)[0] == "C" else char for char in text).split())


def short_name(text: str, most: int = 40) -> str:
    """`text` if it is one short line, else its beginning and a digest: different texts keep different names."""
    plain = plain_text(text)
    if plain == text and len(text) <= most:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:6]
    return f"{plain[: most - 7]}~{digest}"
