"""Encoding of text in which some control tokens count, and of data in which none does."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import AddedToken, Tokenizer

_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]")
"""Added tokens of this form are control tokens even if the tokenizer does not mark them as special."""
_PLACEHOLDER = re.compile("\ue000\\d+\ue001")
_CACHED_TEXTS = 16384


def placeholder(number: int) -> str:
    """A stand-in for piece `number` of data in a template's text, in private-use characters that no template has."""
    return f"\ue000{number}\ue001"


def split_at(text: str, control: Sequence[str]) -> list[str]:
    """`text` split at control tokens: text and control tokens alternate, with text (maybe empty) first and last."""
    if not control:
        return [text]
    longest_first = sorted(control, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", text)


class TextEncoder:
    """A tokenizer that reads control tokens only where it is asked to.

    Control tokens are the added tokens that are marked as special or look like a tag (`<tool_call>`, `[INST]`).
    The text between two of them is encoded as one piece, with its data in place, so that harmless conversations get
    exactly the ids that the tokenizer itself gives them.

    Args:
        backend: is copied, not changed.

    Raises:
        ValueError: the tokenizer would read a control token from plain text.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self._tokenizer = Tokenizer.from_str(backend.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        added = self._tokenizer.get_added_tokens_decoder()
        self.control: dict[str, int] = {
            token.content: token_id
            for token_id, token in added.items()
            if token.content and (token.special or _TAG.fullmatch(token.content))
        }
        """Text of each control token -> its id."""
        self._strips_right = frozenset(token.content for token in added.values() if token.rstrip)
        self._strips_left = frozenset(token.content for token in added.values() if token.lstrip)
        self._ids = frozenset(self.control.values())
        self._tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in self.control])
        self._tokenizer.encode_special_tokens = True
        self.encode_data = functools.lru_cache(maxsize=_CACHED_TEXTS)(self._encode_data)
        """`encode_data(text)`: ids of a text in which no control token counts."""
        self.encode_data(" ".join(self.control))

    def _encode_data(self, text: str) -> tuple[int, ...]:
        # A lone surrogate has no UTF-8 form; it becomes a question mark.
        clean = text.encode("utf-8", "replace").decode("utf-8")
        ids = tuple(self._tokenizer.encode(clean, add_special_tokens=False).ids)
        if not self._ids.isdisjoint(ids):
            raise ValueError("the tokenizer reads control tokens from plain text")
        return ids

    def encode(
        self, text: str, data: Mapping[str, str] | None = None, *, control: Iterable[str] | None = None
    ) -> tuple[int, ...]:
        """Ids of `text`, in which the tokens of `control` count (None: all); placeholders are filled with `data`.

        Raises:
            KeyError: a placeholder without data.
        """
        filled = data or {}
        pieces = split_at(text, tuple(self.control if control is None else control))
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if index % 2:
                ids.append(self.control[piece])
                continue
            if index and pieces[index - 1] in self._strips_right:
                piece = piece.lstrip()
            if index + 1 < len(pieces) and pieces[index + 1] in self._strips_left:
                piece = piece.rstrip()
            ids += self.encode_data(_PLACEHOLDER.sub(lambda match: filled[match[0]], piece)) if piece else ()
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text that these ids spell, with the names of control tokens; invalid UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def holds_control(self, ids: Iterable[int], *, besides: Iterable[str] = ()) -> bool:
        """Whether `ids` contain a control token other than `besides`."""
        allowed = {self.control[text] for text in besides if text in self.control}
        return not (self._ids - allowed).isdisjoint(ids)
