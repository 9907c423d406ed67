"""Settings refuse values without sense, typed() refuses the rest, with messages that name the key."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import pytest

from rti_exp.config.conversion import signature_class, typed
from rti_exp.config.defaults import default_settings
from rti_exp.config.job_settings import TopSettings
from rti_exp.config.role_settings import JudgeSettings, RolePrompt, VerifierSettings
from rti_exp.config.settings import (
    AlgorithmSettings,
    Baseline,
    EvaluationSettings,
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RolloutSettings,
    RunSettings,
    Scorer,
    SettingsError,
)

S = TypeVar("S")


def changed(cls: type[S], node: dict[str, Any], key: str) -> S:
    """The settings in conf/ with the values of `node`; a prompt has none there."""
    defaults = {} if cls is RolePrompt else dataclasses.asdict(default_settings(cls))  # pyright: ignore[reportArgumentType]
    return typed(cls, {**defaults, **node}, key)


@pytest.mark.parametrize("value", [5, 5.0, "5", "5.0", "5e0"])
def test_one_number_in_each_spelling(value: object) -> None:
    delta = changed(GateSettings, {"delta": value}, "gate").delta
    assert delta == 5.0
    assert type(delta) is float


@pytest.mark.parametrize("value", ["inf", "Inf", "INF", ".inf", "+inf", "+.Inf", "infinity", math.inf])
def test_infinity_in_each_spelling(value: object) -> None:
    assert changed(GateSettings, {"delta": value}, "gate").delta == math.inf


def test_negative_zero_is_zero() -> None:
    assert math.copysign(1.0, changed(GateSettings, {"delta": -0.0}, "gate").delta) == 1.0


@pytest.mark.parametrize(
    ("cls", "key", "node", "message"),
    [
        (GateSettings, "gate", {"delta": "nan"}, r"gate\.delta=nan: must be a number >= 0, or inf"),
        (GateSettings, "gate", {"delta": ".nan"}, r"gate\.delta=nan: must be a number >= 0, or inf"),
        (GateSettings, "gate", {"delta": -1}, r"gate\.delta=-1: must be a number >= 0, or inf"),
        (GateSettings, "gate", {"delta": "-inf"}, r"gate\.delta=-inf: must be a number >= 0, or inf"),
        (GateSettings, "gate", {"delta": None}, r"gate\.delta=null: must be a number >= 0, or inf"),
        (GateSettings, "gate", {"delta": "wide"}, r"gate\.delta='wide': must be a number >= 0, or inf"),
        (GateSettings, "gate", {"delta": [1]}, r"gate\.delta=\[1\]: must be a number >= 0, or inf"),
        (GateSettings, "gate", {"delta": True}, r"gate\.delta=True: must be a number >= 0, or inf"),
        (GateSettings, "gate", {"shadow": "perhaps"}, r"gate\.shadow='perhaps': must be true or false"),
        (GateSettings, "gate", {"shadow": 2}, r"gate\.shadow=2: must be true or false"),
        (GateSettings, "gate", {"dleta": 1}, r"gate\.dleta: unknown key; did you mean gate\.delta\?"),
        (GateSettings, "gate", {"x": 1}, r"gate\.x: unknown key; gate has delta, shadow"),
        (RunSettings, "", {"group_size": 7.5}, r"group_size=7\.5: must be an integer"),
        (RunSettings, "", {"group_size": 1}, r"group_size=1: must be an integer >= 2"),
        (RunSettings, "", {"seed": -1}, r"seed=-1: must be an integer in \[0, 4294967296\)"),
        (RunSettings, "", {"seed": 2**32}, r"seed=4294967296: must be an integer in \[0, 4294967296\)"),
        (RunSettings, "", {"max_iterations": 10**23}, r"max_iterations=10{23}: must be an integer in \[1, 92"),
        (RunSettings, "", {"seed": None}, r"seed=null: must be an integer"),
        (RunSettings, "", {"max_iterations": "many"}, r"max_iterations='many': must be an integer"),
        (AlgorithmSettings, "algorithm", {"scope": "some"}, r"scope='some': must be one of all, suffix, turn"),
        (AlgorithmSettings, "algorithm", {"learning_rate": math.nan}, r"algorithm\.learning_rate=nan"),
        (AlgorithmSettings, "algorithm", {"clip_low": math.nan}, r"algorithm\.clip_low=nan: must be a number in \[0"),
        (AlgorithmSettings, "algorithm", {"updates": 0}, r"algorithm\.updates=0: must be an integer >= 1"),
        (AlgorithmSettings, "algorithm", {"gradient_clip": math.nan}, r"algorithm\.gradient_clip=nan"),
        (ReweightSettings, "reweight", {"eps_cal": 2}, r"reweight\.eps_cal=2: must be a number in \[0, 1\]"),
        (ReweightSettings, "reweight", {"scorer": "both"}, r"scorer='both': must be one of policy, source, off"),
        (EvaluationSettings, "eval", {"samples": 0}, r"eval\.samples=0: must be an integer >= 1"),
        (EvaluationSettings, "eval", {"every": -1}, r"eval\.every=-1: must be an integer >= 0"),
        (InterventionSettings, "intervention", {"max_per_group": -1}, r"intervention\.max_per_group=-1"),
        (InterventionSettings, "intervention", {"max_per_group": "a"}, r"='a': must be an integer >= 0 or null"),
        (RolloutSettings, "rollout", {"top_p": 0}, r"rollout\.top_p=0: must be a number in \(0, 1\]"),
        (RolloutSettings, "rollout", {"temperature": "inf"}, r"rollout\.temperature=inf: must be a finite number >= 0"),
        (JudgeSettings, "validator", {"temperature": -1}, r"^validator\.temperature=-1: must be a finite"),
        (VerifierSettings, "verifier", {"checks": ["gold", "tone"]}, r"checks='tone': must be a list \(one of g"),
        (VerifierSettings, "verifier", {"checks": "gold"}, r"verifier\.checks='gold': must be a list"),
        (RolePrompt, "prompts.validator", {"role": "tool", "text": ""}, r"^prompts\.validator\.role='tool': "),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_key(cls: type, key: str, node: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        changed(cls, node, key)


def test_names_of_choices() -> None:
    node = {"baseline": "leave_one_out", "gradient_clip": "inf", "updates": 3.0}
    algorithm = changed(AlgorithmSettings, node, "algorithm")
    assert (algorithm.baseline, algorithm.gradient_clip, algorithm.updates) == (Baseline.leave_one_out, math.inf, 3)
    assert changed(ReweightSettings, {"scorer": "off"}, "reweight").scorer is Scorer.off
    assert changed(ReweightSettings, {"scorer": False}, "reweight").scorer is Scorer.off
    assert changed(InterventionSettings, {"max_per_group": None}, "intervention").max_per_group is None


def test_delta_below_one_never_opens() -> None:
    assert default_settings(GateSettings, delta=0.99).never_opens
    assert not default_settings(GateSettings, delta=1.0).never_opens


@pytest.mark.parametrize("target", ["nowhere.Town", "os", "os.path", "builtins.int", "rti_exp.envs.town.Twon"])
def test_a_target_that_is_no_class_with_keys_is_told(target: str) -> None:
    with pytest.raises(SettingsError, match=rf"env\._target_='{target}': must be the full name of a class"):
        signature_class("env", target)


def test_options_are_checked_against_a_signature() -> None:
    cls = signature_class("env", "rti_exp.envs.town.Town")
    assert cls is not None
    node = {"seed": 0, "train_tasks": 4, "heldout_tasks": 1, "families": ["ret"], "max_turns": 6}
    assert typed(cls, node, "env").families == ["ret"]
    with pytest.raises(SettingsError, match=r"env\.max_turns=0: must be an integer >= 1"):
        typed(cls, {**node, "max_turns": 0}, "env")
    with pytest.raises(SettingsError, match=r"env\.seed: missing; must be an integer"):
        typed(cls, {name: value for name, value in node.items() if name != "seed"}, "env")
    with pytest.raises(SettingsError, match=r"env\.trian_tasks: unknown key; did you mean env\.train_tasks\?"):
        typed(cls, {"trian_tasks": 4}, "env")
    with pytest.raises(SettingsError, match=r"env\._target_='rti_exp\.envs\.village\.Village'"):
        signature_class("env", "rti_exp.envs.village.Village")


def test_the_runs_root_is_expanded_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/elsewhere")
    assert default_settings(TopSettings, runs_root="~/runs").runs_root == "/elsewhere/runs"
