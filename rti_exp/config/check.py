"""A composed config, checked and normalised: typed settings, the run's identity, its directory.

Everything here happens before torch is imported. An unknown key, a wrong type or a value out of range
raises `SettingsError`, whose message names the full key and says what would be right.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rti_exp.config.algorithm_settings import ALGORITHM_SETTINGS, teacher_path
from rti_exp.config.chat_settings import CHAT_AT_FIRST
from rti_exp.config.conversion import likely, signature_class, typed, unknown_key
from rti_exp.config.engine_settings import ENGINE_SETTINGS, check_engine
from rti_exp.config.fields import identity_of
from rti_exp.config.identity import MOVED_TARGETS, TIMEOUT, as_plain, identity
from rti_exp.config.job_settings import (
    BudgetSettings,
    LimitSettings,
    ProbeSettings,
    RecorderSettings,
    TopSettings,
    TrainerSettings,
)
from rti_exp.config.model_files import has_chat_template
from rti_exp.config.paths import policy_folder
from rti_exp.config.policy_settings import PolicySettings, check_lora
from rti_exp.config.remote_settings import (
    CORRECTOR_SETTINGS,
    VALIDATOR_SETTINGS,
    VERIFIER_SETTINGS,
    RemotePolicySettings,
)
from rti_exp.config.role_settings import CorrectorSettings, PromptSettings
from rti_exp.config.secrets import refuse_secrets
from rti_exp.config.settings import (
    EvaluationSettings,
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RolloutSettings,
    RunSettings,
    SettingsError,
)
from rti_exp.config.typed_config import Config, Part
from rti_exp.runs import run_key

REMOVED_REMOTE_KEYS = ("price_input", "price_output", "price_cached_input", "max_cost")
"""Keys of earlier versions' endpoints. They were never part of the run key."""
FORMER_TOP_KEYS = {"limits": {"env_failures": 0.5, "role_failures": 0.9}, "checkpoint_every": 1}
"""The behaviour of versions that did not have these keys yet."""
GROUPS: dict[str, tuple[str, type]] = {
    "rollout": ("rollout", RolloutSettings),
    "eval": ("evaluation", EvaluationSettings),
    "gate": ("gate", GateSettings),
    "reweight": ("reweight", ReweightSettings),
    "intervention": ("intervention", InterventionSettings),
    "prompts": ("prompts", PromptSettings),
    "recorder": ("recorder", RecorderSettings),
    "budget": ("budget", BudgetSettings),
    "limits": ("limits", LimitSettings),
    "trainer": ("trainer", TrainerSettings),
    "policy": ("policy", PolicySettings),
}
"""Config node -> field of `Config`, settings class."""
PARTS: dict[str, Mapping[str, type] | None] = {
    "algorithm": ALGORITHM_SETTINGS,
    "engine": ENGINE_SETTINGS,
    "env": None,
    "validator": VALIDATOR_SETTINGS,
    "corrector": CORRECTOR_SETTINGS,
    "verifier": VERIFIER_SETTINGS,
    "probe": {"rti_exp.pretraining.probe_cases.TownProbe": ProbeSettings},
    "logger": None,
}
"""Nodes with a `_target_` -> settings class, or one for each target; None: the options are checked against the
signature of a torch-free target."""
GIVEN: dict[str, tuple[str, ...]] = {
    "validator": ("policy", "prompt"),
    "corrector": ("policy", "prompt"),
    "verifier": ("policy", "prompts"),
    "logger": ("config", "run"),
}
"""Parameters that the builder passes to a class of another package. The others are its options."""


def check(cfg: DictConfig) -> Config:
    """The typed config.

    Raises:
        SettingsError: an unknown key, a wrong type, a value without sense, or a secret.
    """
    return checked(as_data(cfg))


def check_stored(stored: DictConfig) -> Config:
    """`check` for the config.yaml of a run, which an earlier version may have written."""
    nodes = as_data(stored)
    for node in nodes.values():
        remote = node.get("remote") if isinstance(node, dict) else None
        if isinstance(remote, dict):
            for key in REMOVED_REMOTE_KEYS:
                remote.pop(key, None)
    verifier = nodes.get("verifier")
    if isinstance(verifier, dict) and verifier.get("_target_") in VERIFIER_SETTINGS:
        verifier.pop("steps_per_call", None)
        if "remote" not in verifier:
            verifier.setdefault("path", None)
        if isinstance(verifier.get("policy"), str):
            verifier.update(policy=True, path=verifier["policy"])
    return checked({**FORMER_TOP_KEYS, **nodes})


def as_data(cfg: DictConfig) -> dict[str, Any]:
    """The config as data, resolved, without Hydra's own node.

    Raises:
        SettingsError: a value that is missing or cannot be resolved.
    """
    try:
        own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
        raw = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise SettingsError(f"{error.full_key}: {error.msg}") from error
    assert isinstance(raw, dict)
    return {str(key): value for key, value in raw.items()}


def checked(nodes: dict[str, Any]) -> Config:
    """As `check`, of what `as_data` gives."""
    refuse_secrets(nodes)
    known = [*_names(RunSettings), *_names(TopSettings), *GROUPS, *PARTS]
    for key in nodes:
        if key not in known:
            raise SettingsError(unknown_key(key, key, known, ""))
    for key in (*GROUPS, *PARTS):
        if not isinstance(nodes.get(key), dict):
            raise SettingsError(
                f"{key}={nodes.get(key)!r}: must be a group of keys; choose an option of {key}/"
                f"{likely(key, nodes.get(key))}"
            )
    run = typed(RunSettings, _only(nodes, RunSettings), "")
    top = typed(TopSettings, _only(nodes, TopSettings), "")
    classes = {**GROUPS, "policy": ("policy", RemotePolicySettings)} if "remote" in nodes["policy"] else GROUPS
    made: dict[str, Any] = {attribute: _settings(cls, nodes[key], key) for key, (attribute, cls) in classes.items()}
    timeout = _timeout(nodes["env"].get(TIMEOUT))
    options = {name: value for name, value in nodes["env"].items() if name != TIMEOUT}
    parts: dict[str, Any] = {
        key: read_part(key, options if key == "env" else nodes[key], cls) for key, cls in PARTS.items()
    }
    plain = _plain(nodes, run, top, made, parts)
    plain["env"][TIMEOUT] = timeout
    settings = {key: made[attribute] for key, (attribute, _) in classes.items()} | parts
    key = run_key(identity(plain, settings))
    return Config(run=run, top=top, env_timeout=timeout, plain=plain, key=key, **made, **parts)


def _settings(cls: type, node: Mapping[str, Any], key: str) -> Any:
    """The settings of a group. A gate with a `_target_` is a class of another package."""
    return read_part(key, node, None) if key == "gate" and "_target_" in node else typed(cls, node, key)


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not (number and math.isfinite(value) and value > 0):
        raise SettingsError(f"env.{TIMEOUT}={value!r}: must be a number of seconds > 0, or null (no bound)")
    return float(value)


def read_part(key: str, node: Mapping[str, Any], classes: Mapping[str, type] | None) -> Part:
    """The part at the group `key`, its options checked against the class of its target, or the target's signature."""
    target = node.get("_target_")
    target = MOVED_TARGETS.get(target, target) if isinstance(target, str) else target
    options = {name: value for name, value in node.items() if name != "_target_"}
    if target is not None and not isinstance(target, str):
        raise SettingsError(f"{key}._target_={target!r}: must be the full name of a class")
    if target is None:
        return Part(target=None, options=options)
    cls = (classes or {}).get(target) or signature_class(key, target, GIVEN.get(key, ()))
    return Part(target=target, options=options if cls is None else typed(cls, options, key))


def check_files(config: Config) -> None:
    """That the models that the config names are there, and have positions for a whole trajectory.

    Raises:
        SettingsError: naming the key, and the missing file or what would be right.
    """
    if isinstance(config.policy, RemotePolicySettings):
        raise SettingsError("policy=remote: a remote model can be evaluated (rti_exp.evaluate), not trained")
    check_lora(config.policy.lora)
    check_engine(config.engine.options)
    folders = [policy_folder(config.policy.path)]
    _check_positions(folders[0], config.rollout.max_context)
    if isinstance(config.corrector.options, CorrectorSettings) and config.corrector.options.path is not None:
        folders.append(policy_folder(config.corrector.options.path, "corrector.path"))
    judges = {
        "validator.policy": getattr(config.validator.options, "policy", None),
        "verifier.path": getattr(config.verifier.options, "path", None),
    }
    folders += [policy_folder(path, key) for key, path in judges.items() if isinstance(path, str)]
    teacher = teacher_path(config.algorithm.options)
    if teacher is not None:
        _check_positions(policy_folder(teacher, "algorithm.teacher"), config.rollout.max_context)
    _check_chat(config.policy, folders)


def _check_chat(policy: PolicySettings, folders: Sequence[Path]) -> None:
    """That options of chat templates have one to act on: the policy's, or that of a model that plays a role."""
    plain = identity_of(policy.chat, as_plain(policy.chat))
    changed = [name for name, value in plain.items() if CHAT_AT_FIRST.get(name, "") != value]
    if changed and not any(map(has_chat_template, folders)):
        raise SettingsError(
            f"policy.chat.{changed[0]}={plain[changed[0]]!r}: must be left out with policy.path={policy.path!r}, which "
            "has no chat template: it is spoken to in the embedded policies' own format"
        )


def _check_positions(folder: Path, max_context: int) -> None:
    try:
        positions = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (ValueError, AttributeError) as error:
        raise SettingsError(f"{folder / 'config.json'}: is no model's config ({error})") from error
    if positions is not None and max_context > positions:
        raise SettingsError(
            f"rollout.max_context={max_context}: must be at most {positions}, the positions of {folder}"
        )


def _only(nodes: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The nodes that are fields of `cls`."""
    return {name: nodes[name] for name in _names(cls) if name in nodes}


def _names(cls: type) -> list[str]:
    return [entry.name for entry in dataclasses.fields(cls)]


def _plain(nodes: Mapping[str, Any], run: Any, top: Any, made: Mapping[str, Any], parts: Mapping[str, Part]) -> dict:
    """The config as data, in the order of the YAML, with each value as its settings object holds it."""
    scalars = {**dataclasses.asdict(top), **dataclasses.asdict(run)}
    plain: dict[str, Any] = {}
    for key in nodes:
        if key in GROUPS:
            plain[key] = as_plain(made[GROUPS[key][0]])
        elif key in PARTS:
            plain[key] = as_plain(parts[key])
        else:
            plain[key] = scalars[key]
    return plain
