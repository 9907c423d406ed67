"""Settings of a model behind an OpenAI-compatible endpoint. This module imports no torch and no client."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rti_exp.config.group_settings import CorrectorSettings, ValidatorSettings, VerifierNode
from rti_exp.config.policy_settings import PolicySettings
from rti_exp.config.settings import RolePrompt, RoleSettings, SamplingSettings, SettingsError


def _volatile(default: Any) -> Any:
    """A field that says how the endpoint is reached, not what it answers: no part of a run's identity."""
    return field(default=default, metadata={"volatile": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """A model that answers `POST {base_url}/chat/completions`, and how patiently it is asked.

    The API key is named, never given: `api_key` is the name of an environment variable.
    """

    base_url: str = "http://127.0.0.1:8000/v1"
    model: str = "Qwen/Qwen3-8B"
    answers_as: str | None = None
    """The model's name in its answers. null: `model`, or `model` with a suffix (a dated snapshot); "*": any name."""
    api_key: str | None = _volatile(None)
    """Name of the environment variable that holds the key; null: no key is sent."""
    max_tokens_key: str = "max_tokens"
    """What the endpoint calls the limit of an answer; OpenAI's newer models want max_completion_tokens."""
    send_seed: bool = True
    """Whether requests carry a seed; switch it off for endpoints that refuse it."""
    send_temperature: bool = True
    """Whether requests carry temperature and top_p; switch it off for models that refuse them."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further keys of the request's body, e.g. {chat_template_kwargs: {enable_thinking: false}}."""
    concurrency: int = _volatile(8)
    """Requests under way at once, of one process."""
    requests_per_minute: float = _volatile(math.inf)
    connect_seconds: float = _volatile(10.0)
    read_seconds: float = _volatile(120.0)
    """Longest silence of the server while an answer is awaited."""
    total_seconds: float = _volatile(180.0)
    """Longest duration of one try, however busily the server drips."""
    attempts: int = _volatile(5)
    """Tries of a request, the first included."""
    patience_seconds: float = _volatile(300.0)
    """Longest duration of all tries of a request, waits between them included."""
    first_wait_seconds: float = _volatile(1.0)
    """Wait before the second try, at most; doubled for each further one."""
    max_wait_seconds: float = _volatile(60.0)
    """Longest wait between two tries, also if the server asks for more (Retry-After); and how long an endpoint that
    is down is left alone."""
    max_failure_rate: float = _volatile(1.0)
    """Share of the last `failure_window` requests that may be lost; more end the job. 1: none ends it."""
    failure_window: int = _volatile(50)
    cache: str | None = _volatile(None)
    """Folder of answers that are kept and used again for equal requests; null: none are kept."""

    def __post_init__(self) -> None:
        self._check_address()
        if not self.model.strip():
            raise SettingsError("model='': must be the name of the endpoint's model")
        for name in ("concurrency", "attempts", "failure_window"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: must be an integer >= 1")
        for name in (entry.name for entry in dataclasses.fields(self) if entry.name.endswith("_seconds")):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingsError(f"{name}={getattr(self, name)}: must be a finite number > 0")
        if not self.requests_per_minute > 0:
            raise SettingsError(f"requests_per_minute={self.requests_per_minute}: must be a number > 0, or inf")
        if not 0 <= self.max_failure_rate <= 1:
            raise SettingsError(f"max_failure_rate={self.max_failure_rate}: must be in [0, 1]")
        if self.max_tokens_key not in ("max_tokens", "max_completion_tokens"):
            raise SettingsError(
                f"max_tokens_key={self.max_tokens_key!r}: must be 'max_tokens' or 'max_completion_tokens'"
            )
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


# The settings of roles that a remote model plays. No super(): a dataclass with slots is another class than its body's.


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCorrectorSettings(SamplingSettings):
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    instruction: RolePrompt = field(default_factory=RolePrompt)
    """What the remote model is asked; {evidence} and {reason} are filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteValidatorSettings(RoleSettings):
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    instruction: RolePrompt = field(default_factory=RolePrompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteVerifierSettings(VerifierNode):
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    instructions: dict[str, RolePrompt] = field(default_factory=dict)
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
    f"{_INTERVENTION}.verifier.Verifier": VerifierNode,
    f"{_INTERVENTION}.remote_roles.RemoteVerifier": RemoteVerifierSettings,
}
"""Target -> the class of its group's options."""


class ToolCalls(enum.StrEnum):
    """How a remote policy is told the tools and calls them: as the API's own, or as text (one JSON object)."""

    native = "native"
    text = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePolicySettings(PolicySettings):
    """A remote model in the policy's place: for evaluation only."""

    path: str = ""
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    tool_calls: ToolCalls = ToolCalls.native
    system: str = ""
    """A system message of ours, before the environment's; empty: none."""
    max_tokens: int = 1024
    """The endpoint's tokens that one assistant turn may take."""

    def __post_init__(self) -> None:
        PolicySettings.__post_init__(self)
        if self.path:
            raise SettingsError(f"path={self.path!r}: must be left out, the model is policy.remote.model")
        if self.max_tokens < 1:
            raise SettingsError(f"max_tokens={self.max_tokens}: must be an integer >= 1")


def without_volatile(settings: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    """`plain`, the data of a settings object, without its volatile fields, also those of settings inside it."""
    kept: dict[str, Any] = {}
    fields = {entry.name: entry for entry in dataclasses.fields(settings)}
    for name, value in plain.items():
        entry = fields.get(name)
        if entry is not None and entry.metadata.get("volatile"):
            continue
        inner = None if entry is None else getattr(settings, name)
        nested = dataclasses.is_dataclass(inner) and not isinstance(inner, type)
        kept[name] = without_volatile(inner, value) if nested else value
    return kept
