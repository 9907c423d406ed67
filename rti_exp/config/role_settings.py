"""Settings of the roles of an intervention: prompts, sampling, and which model plays the role."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from rti_exp.config.fields import Count, FiniteNonNegative, Natural, Nonblank, OutOfKeyAt, settings_class

CheckName = Literal["gold", "leak", "plausible"]
CHECK_NAMES: tuple[CheckName, ...] = ("gold", "leak", "plausible")


@settings_class
class RolePrompt:
    """What is appended to a history to ask for a role's answer.

    `text` may hold {evidence} and {reason}; the text that replaces them is data and is not searched for braces.
    """

    role: Literal["system", "user"]
    text: str


@settings_class
class PromptSettings:
    """The roles' requests; {evidence} and {reason} are filled in."""

    validator: RolePrompt
    corrector: RolePrompt
    verifier: dict[str, RolePrompt]


@settings_class
class SamplingSettings:
    """How a role is sampled."""

    temperature: FiniteNonNegative
    max_tokens: Count


@settings_class
class RoleSettings(SamplingSettings):
    """How a role that judges is asked."""

    retries: Natural
    """Further tries, with other seeds at temperature 1, for an unreadable answer."""


@settings_class
class JudgeSettings(RoleSettings):
    steps_per_call: Count
    """Steps of a trajectory that are judged in one batch; a harmful one ends the search."""


@settings_class
class ValidatorSettings(JudgeSettings):
    policy: Annotated[str | None, OutOfKeyAt(None)]
    """Path of the model that judges, as policy.path; None is the policy itself."""


@settings_class
class CorrectorSettings(SamplingSettings):
    path: str | None
    """The model that corrects, as policy.path; None is the policy itself."""


def _in_order(checks: list[CheckName]) -> list[CheckName]:
    return [name for name in CHECK_NAMES if name in checks]


@settings_class
class VerifierSettings(RoleSettings):
    """Which checks are asked of a model, and whether the deterministic leak rule joins them."""

    policy: bool
    """Whether a model is asked."""
    rule: bool
    checks: Annotated[list[CheckName], AfterValidator(_in_order)]


@settings_class
class PolicyVerifierSettings(VerifierSettings):
    path: Annotated[str | None, Nonblank, OutOfKeyAt(None)]
    """The model that is asked, as policy.path; None is the policy itself."""
