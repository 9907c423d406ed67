"""Encoding of text in which some control tokens count, and of data in which none does."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer

_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]")
"""Added tokens of this form are control tokens even if the tokenizer does not mark them as special."""
PLACEHOLDER_START = "\ue000"
_PLACEHOLDER = re.compile("\ue000\\d+\ue001")
_CACHED_TEXTS = 16384


def placeholder(number: int) -> str:
    """A stand-in for piece `number` of data in a template's text, in private-use characters that no template has."""
    return f"\ue000{number}\ue001"


def after_placeholders(text: str) -> str:
    """The text after the last placeholder."""
    return _PLACEHOLDER.split(text)[-1]


def split_at(text: str, control: Sequence[str]) -> list[str]:
    """`text` split at control tokens: text and control tokens alternate, with text (maybe empty) first and last."""
    if not control:
        return [text]
    longest_first = sorted(control, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", text)


def split_before(text: str, tags: Iterable[tuple[int, str]]) -> list[str]:
    """As `split_at`, at these tags, given by place and name."""
    pieces, end = [], 0
    for place, name in tags:
        pieces += [text[end:place], name]
        end = place + len(name)
    return [*pieces, text[end:]]


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
        form = backend.to_str()
        self._tokenizer = Tokenizer.from_str(form)
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
        self._names = {token_id: text for text, token_id in self.control.items()}
        self._ids = frozenset(self._names)
        self._readable = self._ids - {_unknown_id(self._tokenizer, json.loads(form)["model"])}
        self._tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in self.control])
        self._tokenizer.encode_special_tokens = True
        self.encode_data = functools.lru_cache(maxsize=_CACHED_TEXTS)(self._encode_data)
        """`encode_data(text)`: ids of a text in which no control token counts."""
        self.encode_data(" ".join(self.control))

    def _encode_data(self, text: str) -> tuple[int, ...]:
        # A lone surrogate has no UTF-8 form; it becomes a question mark.
        clean = text.encode("utf-8", "replace").decode("utf-8")
        ids = tuple(self._tokenizer.encode(clean, add_special_tokens=False).ids)
        if not self._readable.isdisjoint(ids):
            raise ValueError("the tokenizer reads control tokens from plain text")
        return ids

    def encode(self, text: str, data: Mapping[str, str] | None = None) -> tuple[int, ...]:
        """Ids of a template's text, in which all control tokens count; its placeholders are filled with `data`."""
        return self.encode_pieces(split_at(text, tuple(self.control)), data)

    def encode_behind(self, left: Sequence[str], pieces: Sequence[str]) -> tuple[int, ...]:
        """Ids of `pieces` behind the pieces `left`, without those of `left`.

        Many tokenizers encode the first word of a text differently from the same word in the middle. Where a token
        would span the border, the ids of `pieces` alone are returned.
        """
        before = self.encode_pieces(left)
        ids = self.encode_pieces([*left[:-1], left[-1] + pieces[0], *pieces[1:]])
        return ids[len(before) :] if ids[: len(before)] == before else self.encode_pieces(pieces)

    def encode_pieces(self, pieces: Sequence[str], data: Mapping[str, str] | None = None) -> tuple[int, ...]:
        """Ids of text and control tokens, which alternate, text first and last. Without `data` there are no
        placeholders."""
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if index % 2:
                ids.append(self.control[piece])
                continue
            if index and pieces[index - 1] in self._strips_right:
                piece = piece.lstrip()
            if index + 1 < len(pieces) and pieces[index + 1] in self._strips_left:
                piece = piece.rstrip()
            if data is not None:
                piece = _PLACEHOLDER.sub(lambda match: data[match[0]], piece)
            ids += self.encode_data(piece) if piece else ()
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text that these ids spell, with the names of control tokens; invalid UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def spelled(self, ids: Sequence[int], *, left: Sequence[int] = (), lead: str = "") -> tuple[str, dict[int, str]]:
        """The text of `ids` behind the ids `left`, and its control tokens by their place in it.

        If it begins with `lead`, that is left out.
        """
        start = len(self.decode(left))
        whole = self.decode([*left, *ids])
        start += len(lead) if whole.startswith(lead, start) else 0
        text = whole[start:]
        control: dict[int, str] = {}
        for index, token_id in enumerate(ids):
            if token_id in self._ids:
                place = len(self.decode([*left, *ids[:index]])) - start
                control[place] = self._names[token_id]
        return text, control


def _unknown_id(tokenizer: Tokenizer, model: Mapping[str, Any]) -> int | None:
    """The id that stands for characters which the vocabulary lacks: that one does come from plain text."""
    return tokenizer.token_to_id(model["unk_token"]) if model.get("unk_token") else model.get("unk_id")
