"""Parts of another package: they get their own keys, checked, and the objects that they work with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from rti_exp import build
from rti_exp.config import check
from rti_exp.settings import RolePrompt, SettingsError


class OwnCorrector:
    def __init__(self, *, policy: Any, prompt: RolePrompt, tries: int = 1, tone: str = "plain") -> None:
        self.made_of = (policy, prompt.text, tries, tone)


def test_a_corrector_of_ones_own(composed: Callable[..., DictConfig]) -> None:
    own = ("~corrector", f"+corrector._target_={__name__}.OwnCorrector")
    made: Any = build.corrector(check(composed(*own, "+corrector.tries=3")), "policy", torch.device("cpu"))  # pyright: ignore
    assert made.made_of == ("policy", "rewrite: {evidence} | {reason}", 3, "plain")
    with pytest.raises(SettingsError, match=r"corrector\.tires: unknown key; did you mean corrector\.tries\?"):
        check(composed(*own, "+corrector.tires=3"))
