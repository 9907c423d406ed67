"""Settings of a model behind an OpenAI-compatible endpoint. This module imports no torch and no client."""

from __future__ import annotations

import enum
import re
import urllib.parse
from typing import Annotated, Any, Literal

from rti_exp.config.fields import VOLATILE, Count, FinitePositive, Nonblank, Positive, Share, settings_class
from rti_exp.config.role_settings import (
    CorrectorSettings,
    JudgeSettings,
    PolicyVerifierSettings,
    RolePrompt,
    SamplingSettings,
    ValidatorSettings,
    VerifierSettings,
)
from rti_exp.config.settings import SettingsError

Seconds = Annotated[FinitePositive, VOLATILE]


@settings_class
class RemoteSettings:
    """A model that answers `POST {base_url}/chat/completions`, and how patiently it is asked.

    The API key is named, never given: `api_key` is the name of an environment variable.
    """

    base_url: str
    model: Annotated[str, Nonblank]
    answers_as: str | None
    """The model's name in its answers. None: `model`, or `model` with a suffix (a dated snapshot); "*": any name."""
    api_key: Annotated[str | None, VOLATILE]
    """Name of the environment variable that holds the key; None: no key is sent."""
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"]
    """The endpoint's name for the limit of an answer; OpenAI's newer models want max_completion_tokens."""
    send_seed: bool
    """Whether requests carry a seed; switch it off for endpoints that refuse it."""
    send_temperature: bool
    """Whether requests carry temperature and top_p; switch it off for models that refuse them."""
    extra: dict[str, Any]
    """Further keys of the request's body, e.g. {chat_template_kwargs: {enable_thinking: false}}."""
    concurrency: Annotated[Count, VOLATILE]
    """Concurrent requests of one process."""
    requests_per_minute: Annotated[Positive, VOLATILE]
    connect_seconds: Seconds
    read_seconds: Seconds
    """Longest silence of the server while an answer is awaited."""
    total_seconds: Seconds
    """Longest duration of one try."""
    attempts: Annotated[Count, VOLATILE]
    """Tries of a request, the first included."""
    patience_seconds: Seconds
    """Longest duration of all tries of a request, waits between them included."""
    first_wait_seconds: Seconds
    """Wait before the second try, at most; doubled for each further one."""
    max_wait_seconds: Seconds
    """Longest wait between two tries, also if the server asks for more (Retry-After); and how long an endpoint that
    is down is left alone."""
    max_failure_rate: Annotated[Share, VOLATILE]
    """Share of the last `failure_window` requests that may be lost; more end the job. 1: none ends it."""
    failure_window: Annotated[Count, VOLATILE]
    cache: Annotated[str | None, VOLATILE]
    """Folder of answers that are reused for equal requests; None: no cache."""

    def __post_init__(self) -> None:
        self._check_address()
        taken = {"messages", "model", "tools", "stream", "n", "seed", "temperature", "top_p", self.max_tokens_key}
        if taken & self.extra.keys():
            raise SettingsError(f"extra={sorted(self.extra)}: must have none of {sorted(taken & self.extra.keys())}")

    def _check_address(self) -> None:
        """The address is written to config files, so that nothing secret may stand in it."""
        try:
            parts = urllib.parse.urlsplit(self.base_url)
            _ = parts.port
        except ValueError as error:
            raise SettingsError(f"base_url: must be the address of an endpoint ({error})") from error
        if parts.username or parts.password or parts.query or parts.fragment:
            raise SettingsError(
                "base_url: must have no user, password, query or fragment (the value is not shown here); "
                "a key goes into an environment variable that api_key names"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"base_url={self.base_url!r}: must begin with http:// or https:// and name a host")

    def accepts(self, answered: str) -> bool:
        """Whether an answer by a model of this name is one by ours: that name, or that name with a date after it."""
        if self.answers_as == "*":
            return True
        if self.answers_as is not None:
            return answered == self.answers_as
        return re.fullmatch(re.escape(self.model) + r"(-\d{4}(-?\d{2}){0,2})?", answered) is not None


@settings_class
class RemoteCorrectorSettings(SamplingSettings):
    remote: RemoteSettings
    instruction: RolePrompt
    """The request to the remote model; {evidence} and {reason} are filled in."""


@settings_class
class RemoteValidatorSettings(JudgeSettings):
    remote: RemoteSettings
    instruction: RolePrompt


@settings_class
class RemoteVerifierSettings(VerifierSettings):
    remote: RemoteSettings
    instructions: dict[str, RolePrompt]
    """One for each check."""


_INTERVENTION = "rti_exp.intervention"
CORRECTOR_SETTINGS: dict[str, type] = {
    f"{_INTERVENTION}.corrector.SelfCorrector": CorrectorSettings,
    f"{_INTERVENTION}.corrector.TeacherCorrector": CorrectorSettings,
    f"{_INTERVENTION}.remote_roles.RemoteCorrector": RemoteCorrectorSettings,
}
VALIDATOR_SETTINGS: dict[str, type] = {
    f"{_INTERVENTION}.validator.Validator": ValidatorSettings,
    f"{_INTERVENTION}.remote_roles.RemoteValidator": RemoteValidatorSettings,
}
VERIFIER_SETTINGS: dict[str, type] = {
    f"{_INTERVENTION}.verifier.Verifier": PolicyVerifierSettings,
    f"{_INTERVENTION}.remote_roles.RemoteVerifier": RemoteVerifierSettings,
}
"""Target -> the class of its group's options."""


class ToolCalls(enum.StrEnum):
    """How a remote policy is told the tools and calls them: as the API's own, or as text (one JSON object)."""

    native = "native"
    text = "text"


@settings_class
class RemotePolicySettings:
    """A remote model in the policy's place: for evaluation only."""

    remote: RemoteSettings
    tool_calls: ToolCalls
    system: str
    """A system message of ours, before the environment's; empty: none."""
    max_tokens: Count
    """The endpoint's tokens that one assistant turn may take."""
