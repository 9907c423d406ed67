"""The inputs that fuzzing has found (`python -m tests.guarantees.fuzz`), each a test of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guarantees.fuzz import CORPUS, TARGETS, WORDS

CASES = [(target, path) for target in TARGETS for path in sorted((CORPUS / target).glob("*"))]


@pytest.mark.parametrize(("target", "path"), CASES, ids=lambda value: getattr(value, "name", value))
def test_what_fuzzing_has_found(target: str, path: Path) -> None:
    TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_there_is_a_corpus_and_plain_words_keep_the_promises(target: str) -> None:
    assert len(list((CORPUS / target).glob("*"))) >= 5
    for word in WORDS:
        TARGETS[target](word)
