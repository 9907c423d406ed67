"""A verifier without a model: a correction must match a regular expression."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rti_exp.config.role_settings import RolePrompt
from rti_exp.experiment.policies import LoadedPolicy
from rti_exp.intervention.case import Corrected
from rti_exp.types import Check


class RegexVerifier:
    same_tokenizer = True

    def __init__(self, *, policy: LoadedPolicy, prompts: Mapping[str, RolePrompt], pattern: str = ".+") -> None:
        self.engine = policy.engine  # nothing is asked, but every role names its engine
        self.pattern = re.compile(pattern, re.DOTALL)

    def check(self, attempts: Sequence[Corrected]) -> list[tuple[Check, ...]]:
        return [(self._check(attempt.correction.text),) for attempt in attempts]

    def _check(self, text: str) -> Check:
        return Check(name="plausible", judge="regex", passed=self.pattern.fullmatch(text) is not None)
