"""The values in `conf/` as settings objects, for code that composes no config: examples, tests, notebooks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeVar

from omegaconf import OmegaConf

from rti_exp.config.algorithm_settings import DistillationSettings, ImitationSettings, LuffySettings
from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.compose import composed
from rti_exp.config.conversion import typed
from rti_exp.config.engine_settings import LocalEngineSettings, VllmEngineSettings
from rti_exp.config.fields import hints_of
from rti_exp.config.job_settings import (
    BudgetSettings,
    LimitSettings,
    ProbeSettings,
    RecorderSettings,
    TopSettings,
    TrainerSettings,
)
from rti_exp.config.policy_settings import LoraSettings, PolicySettings
from rti_exp.config.remote_settings import RemotePolicySettings, RemoteSettings
from rti_exp.config.role_settings import (
    CorrectorSettings,
    JudgeSettings,
    PolicyVerifierSettings,
    PromptSettings,
    RoleSettings,
    SamplingSettings,
    ValidatorSettings,
    VerifierSettings,
)
from rti_exp.config.settings import (
    AlgorithmSettings,
    EvaluationSettings,
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RolloutSettings,
    RunSettings,
    UpdateSettings,
)

S = TypeVar("S")

SOURCES: dict[type, tuple[str, str]] = {
    RunSettings: ("", ""),
    TopSettings: ("", ""),
    RolloutSettings: ("", "rollout"),
    EvaluationSettings: ("", "eval"),
    RecorderSettings: ("", "recorder"),
    BudgetSettings: ("", "budget"),
    LimitSettings: ("", "limits"),
    UpdateSettings: ("", "algorithm"),
    AlgorithmSettings: ("", "algorithm"),
    LuffySettings: ("algorithm=luffy", "algorithm"),
    DistillationSettings: ("algorithm=opd", "algorithm"),
    ImitationSettings: ("algorithm=sft", "algorithm"),
    GateSettings: ("", "gate"),
    ReweightSettings: ("", "reweight"),
    InterventionSettings: ("", "intervention"),
    PromptSettings: ("", "prompts"),
    SamplingSettings: ("", "validator"),
    RoleSettings: ("", "validator"),
    JudgeSettings: ("", "validator"),
    ValidatorSettings: ("", "validator"),
    CorrectorSettings: ("", "corrector"),
    VerifierSettings: ("", "verifier"),
    PolicyVerifierSettings: ("", "verifier"),
    PolicySettings: ("", "policy"),
    LoraSettings: ("", "policy.lora"),
    ChatSettings: ("", "policy.chat"),
    LocalEngineSettings: ("", "engine"),
    VllmEngineSettings: ("engine=vllm", "engine"),
    ProbeSettings: ("", "probe"),
    TrainerSettings: ("", "trainer"),
    RemoteSettings: ("corrector=remote", "corrector.remote"),
    RemotePolicySettings: ("policy=remote", "policy"),
}
"""Settings class -> the option that has its keys (none: the default config), and the node that holds them."""


def default_settings(cls: type[S], **changes: Any) -> S:
    """The settings of `conf/`, with `changes`.

    Example:
        >>> default_settings(GateSettings, delta=20).shadow
        False

    Raises:
        SettingsError: an unknown key or an invalid value.
    """
    return settings_at(cls, *SOURCES[cls], **changes)


def settings_at(cls: type[S], option: str, node: str, /, root: str = "train", **changes: Any) -> S:
    """As `default_settings`, for a class whose keys are at `node` of the config with this option."""
    values = node_at(root, option, node)
    return typed(cls, {**{name: values[name] for name in hints_of(cls)}, **changes}, node)


@functools.cache
def node_at(root: str, option: str, node: str) -> dict[str, Any]:
    """A node of the config `conf/<root>.yaml` with this option, as data; "" is the top."""
    config = composed([option] if option else [], root=root)
    values = OmegaConf.to_container(OmegaConf.select(config, node) if node else config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def endpoint_settings(options: Mapping[str, Any], key: str) -> RemoteSettings:
    """An endpoint of which `options` has some keys; the others are those of `conf/endpoint.yaml`, without its cache.

    Raises:
        SettingsError: an unknown key or an invalid value; the message names it below `key`.
    """
    return typed(RemoteSettings, {**node_at("train", *SOURCES[RemoteSettings]), "cache": None, **options}, key)
