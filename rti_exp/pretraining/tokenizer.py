"""The embedded tokenizer: byte-level BPE, with the town's names, numbers and call templates as single tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rti_exp.envs.town.families import FAMILIES
from rti_exp.envs.town.names import CITIES, CURRENCIES, ITEMS, NUMBERS, PEOPLE, PLACES
from rti_exp.types import Message

SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
# Words keep the spaces around them. Capitalised words and numbers stand alone, so that a name is the same token
# wherever it occurs and can be copied.
WORDS = Regex(r"[A-Z][A-Za-z]*|\d{1,2}| ?[a-z]+ ?|[^\sA-Za-z\d]+ ?|\s+")


def call_templates() -> list[str]:
    """The fixed text of every tool call, split at the tool's name and at each argument."""
    templates = {'"}}', '{"name": "run_speed_test", ', '"arguments": {}}', '", "note": "', '"arguments": {"note": "'}
    for family in FAMILIES.values():
        for tool in family.tools:
            templates.add('{"name": "' + tool.name + '", ')
            for index, parameter in enumerate(tool.parameters):
                templates.add(('"arguments": {"' if index == 0 else '", "') + parameter + '": "')
    return sorted(templates)


ANSWERS = ('{"pass": true}', '{"pass": false}', '{"harmful": false}', '{"harmful": true, "reason": "')


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train the BPE on `texts` and add the town's fixed pieces. `vocab_size` includes the pieces."""
    pieces = [*call_templates(), *ANSWERS, *PLACES, *CITIES, *PEOPLE, *ITEMS, *CURRENCIES, *NUMBERS]
    pieces = list(dict.fromkeys(pieces))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(pieces),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    separator = re.compile("|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True)))
    tokenizer.train_from_iterator((part for text in texts for part in separator.split(text) if part), trainer)
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in pieces])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"],
        clean_up_tokenization_spaces=False,
    )


class TextCollector:
    """A renderer that only collects texts. Documents written with it give the tokenizer's training text."""

    stop_ids = (0,)

    def __init__(self) -> None:
        self.texts: list[str] = []

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return self.appended([message for message in messages if message.role != "system"], closed=True)

    def appended(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        self.texts += [message.content for message in messages]
        return ()

    def action_ids(self, text: str) -> tuple[int, ...]:
        self.texts.append(text)
        return (0,)

    def message(self, action_ids: Sequence[int]) -> Message:
        raise TypeError("a text collector cannot decode ids")
