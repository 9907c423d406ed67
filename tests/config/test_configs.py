"""Every YAML is loaded and type-checked, and every option of every group composed."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.algorithm_settings import ALGORITHM_SETTINGS
from rti_exp.config.check import GROUPS, PARTS, check
from rti_exp.config.defaults import default_settings
from rti_exp.config.engine_settings import LocalEngineSettings
from rti_exp.config.job_settings import ProbeSettings, TopSettings
from rti_exp.config.paths import assets_root
from rti_exp.config.settings import RunSettings, SettingsError
from rti_exp.experiment.checks import check_parts

Composed = Callable[..., DictConfig]

ROOT = assets_root()
FILES = sorted([*ROOT.joinpath("conf").rglob("*.yaml"), *ROOT.joinpath("sweeps").rglob("*.yaml")])
OPTIONS = sorted(
    (path.parts[0], "/".join(path.with_suffix("").parts[1:]))
    for path in (path.relative_to(ROOT / "conf") for path in ROOT.joinpath("conf").glob("*/**/*.yaml"))
)
ADDED = ("benchmark",)
"""Groups without an option by default: `+benchmark=NAME`."""
SWEEPS = sorted(path.stem for path in ROOT.joinpath("sweeps").glob("*.yaml"))
# fmt: off
CONTRACT_KEYS = [
    "seed", "study", "runs_root", "fresh", "size", "max_iterations", "tasks_per_iteration", "group_size",
    "eval.every", "eval.tasks", "eval.samples", "gate.delta", "gate.shadow", "reweight.eps_cal",
    "reweight.scorer", "corrector", "validator", "verifier", "verifier.checks", "intervention.max_per_group",
    "intervention.merge", "intervention.evidence", "algorithm", "algorithm.scope", "algorithm.updates",
    "algorithm.normalize_std", "algorithm.beta", "policy", "engine", "env", "logger", "trainer",
    "recorder.every",
]
# fmt: on


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_yaml_loads(path: Path) -> None:
    assert isinstance(OmegaConf.load(path), DictConfig)


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda value: str(value))
def test_every_option_composes_and_checks(composed: Composed, group: str, option: str) -> None:
    override = f"+{group}={option}" if group in ADDED else f"{group}={option}"
    config = check(composed(override))
    chosen = composed(override, return_hydra_config=True).hydra.runtime.choices[group]
    assert chosen == option
    assert list(config.plain) == list(check(composed()).plain)
    assert re.fullmatch("[0-9a-f]{12}", config.key)


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_is_a_multirun_of_checked_configs(composed: Composed, name: str) -> None:
    config = composed(f"+sweeps={name}", return_hydra_config=True)
    assert config.hydra.mode is RunMode.MULTIRUN
    assert config.study == name
    for key, values in config.hydra.sweeper.params.items():
        for value in swept(key, values):
            check(composed(f"+sweeps={name}", f"{key}={value}"))
            check(composed(f"+sweeps={name}", f"{key}={value}", "size=quick"))


def swept(key: str, values: object) -> list[str]:
    override = OverridesParser.create().parse_override(f"{key}={values}")
    assert override.is_sweep_override()
    return [str(value) for value in override.sweep_string_iterator()]


def test_quick_studies_are_small(composed: Composed) -> None:
    for name in SWEEPS:
        assert check(composed(f"+sweeps={name}", "size=quick")).run.max_iterations == 8, name


def test_arms_of_a_study_are_different_runs(composed: Composed) -> None:
    for name in ("paper", "baselines", "no_verifier", "self_vs_teacher"):
        config = composed(f"+sweeps={name}", return_hydra_config=True)
        (key, values), *_ = config.hydra.sweeper.params.items()
        arms = swept(key, values)
        keys = {check(composed(f"+sweeps={name}", f"{key}={value}")).key for value in arms}
        assert len(keys) == len(arms), name


def test_defaults_of_the_contract(composed: Composed) -> None:
    config = check(composed())
    assert config.run == default_settings(RunSettings, seed=0, max_iterations=24, tasks_per_iteration=12, group_size=8)
    assert (config.evaluation.every, config.evaluation.tasks, config.evaluation.samples) == (8, 96, 8)
    assert (config.plain["gate"]["delta"], config.reweight.eps_cal) == (5.0, 0.2)
    assert (config.intervention.max_per_group, config.intervention.corrections) == (None, 3)
    assert (config.rollout.max_tokens, config.rollout.max_context) == (32, 96)
    assert config.top == default_settings(TopSettings, study=None, runs_root="runs", fresh=False, size="full")


@pytest.mark.parametrize("key", CONTRACT_KEYS)
def test_keys_of_the_contract_exist(composed: Composed, key: str) -> None:
    assert OmegaConf.select(composed(), key, default="missing") != "missing"


def test_every_setting_stands_in_a_yaml(composed: Composed) -> None:
    """Else overriding it would need a plus sign."""
    config = composed()
    classes: dict[str, Any] = {key: cls for key, (_, cls) in GROUPS.items()}
    classes |= {"engine": LocalEngineSettings, "probe": ProbeSettings}
    for key, cls in classes.items():
        assert {entry.name for entry in dataclasses.fields(cls)} <= set(config[key]), key
    for _, option in (one for one in OPTIONS if one[0] == "algorithm"):
        node = composed(f"algorithm={option}").algorithm
        assert {entry.name for entry in dataclasses.fields(ALGORITHM_SETTINGS[node._target_])} == set(node) - {
            "_target_"
        }
    top = {entry.name for cls in (RunSettings, TopSettings) for entry in dataclasses.fields(cls)}
    assert top | set(GROUPS) | set(PARTS) == set(config)


def test_options_mirror_the_classes_they_are_for(composed: Composed) -> None:
    from rti_exp.engines.local import LocalEngine
    from rti_exp.envs.town import Town

    engine = inspect.signature(LocalEngine).parameters
    for entry in dataclasses.fields(LocalEngineSettings):
        assert entry.name in engine
    assert set(composed().env) - {"_target_", "timeout"} == set(inspect.signature(Town).parameters)


def test_the_plain_config_holds_plain_values(composed: Composed) -> None:
    plain = check(composed("gate.delta=inf", "algorithm.scope=turn", "corrector=none")).plain
    assert plain["gate"]["delta"] == math.inf
    assert plain["algorithm"]["scope"] == "turn"
    assert type(plain["algorithm"]["scope"]) is str
    assert plain["corrector"]["_target_"] is None
    assert "hydra" not in plain


@pytest.mark.parametrize(
    ("overrides", "corrected"),
    [
        ([], True),
        (["algorithm=luffy"], False),
        (["algorithm=luffy", "corrector=self"], True),
        (["algorithm=opd"], False),
        (["algorithm=sft"], True),
        (["experiment=luffy"], False),
        (["experiment=[leaks,grpo]"], False),
    ],
)
def test_who_corrects(composed: Composed, overrides: list[str], corrected: bool) -> None:
    assert (check(composed(*overrides)).corrector.target is not None) is corrected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm=sft", "corrector=none"],
            r"corrector: with rti_exp\.objective\.sft\.SFT it must be another option than none",
        ),
        (["algorithm=opd", "corrector=self"], r"corrector: with rti_exp\.objective\.opd\.OPD it must be none"),
        (["algorithm=luffy", "algorithm.n_prefix=4", "group_size=4"], r"n_prefix=4: must be below group_size=4"),
        (["rollout.max_context=2049"], r"^rollout\.max_context=2049: must be at most 2048, the positions of "),
        (["rollout.top_p=0.9"], r"^rollout\.top_p=0\.9: must be 1 in training; "),
        (["rollout.temperature=0"], r"^rollout\.temperature=0\.0: must be > 0 in training; "),
        (["algorithm=luffy", "algorithm.teacher=nowhere"], r"algorithm\.teacher='nowhere': there is no nowhere"),
    ],
)
def test_what_does_not_go_together_is_refused(
    composed: Composed, policy_folder: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        check_parts(check(composed(f"policy.path={policy_folder}", *overrides)))


def test_quick_is_small_and_debug_smaller(composed: Composed) -> None:
    quick = check(composed("size=quick"))
    assert (quick.run.max_iterations, quick.evaluation.tasks, quick.top.size) == (8, 12, "quick")
    assert check(composed("size=quick", "max_iterations=3")).run.max_iterations == 3
    assert check(composed("size=quick", "experiment=leaks")).run.max_iterations == 8
    assert check(composed("debug=one_iteration")).run.max_iterations == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+gate.dleta=1"], r"gate\.dleta: unknown key; did you mean gate\.delta\?"),
        (["+colour=red"], r"colour: unknown key; .*at the top there are algorithm"),
        (["+env.size=3"], r"env\.size: unknown key; did you mean env\.seed\?|env\.size: unknown key; env has"),
        (["+engine.rows=3"], r"engine\.rows: unknown key; "),
        (["engine.max_batch=0"], r"engine\.max_batch=0: must be an integer >= 1"),
        (["trainer.devices=0"], r"trainer\.devices=0: must be an integer >= 1"),
        (["trainer.precision=16-mixed"], r"^trainer\.precision='16-mixed': must be one of 32-true, 64-true, bf16-mi"),
        (["policy.dtype=int8"], r"policy\.dtype='int8': must be one of float32, bfloat16, float16"),
        (["study=../elsewhere"], r"study='\.\./elsewhere': must be a plain folder name"),
        (["study=''"], r"study='': must be a plain folder name"),
        (["verifier.checks=[tone]"], r"verifier\.checks='tone': must be a list \(one of gold, leak, plausible each\)"),
        (["verifier.retries=-1"], r"^verifier\.retries=-1: must be an integer >= 0"),
        (["+corrector.retries=1"], r"^corrector\.retries: unknown key; "),
        (["corrector.max_tokens=0"], r"^corrector\.max_tokens=0: must be an integer >= 1"),
        (["corrector.path=3.5", "corrector.temperature=hot"], r"corrector\.temperature='hot'"),
        (["prompts.verifier.gold.role=tool"], r"^prompts\.verifier\.gold\.role='tool': must be"),
        (["gate={delta:5}", "+gate.extra={a:1}"], r"gate\.extra: unknown key; "),
        (["budget.tokens=0"], r"budget\.tokens=0: must be a number > 0, or inf"),
        (["limits.env_failures=1.5"], r"^limits\.env_failures=1\.5: must be a number in \[0, 1\]"),
        (["env.timeout=0"], r"^env\.timeout=0: must be a number of seconds > 0, or null"),
        (["env.timeout=inf"], r"^env\.timeout=inf: must be a number of seconds > 0, or null"),
        (["env.timeout=soon"], r"^env\.timeout='soon': must be a number of seconds > 0, or null"),
        (["probe.cases=0"], r"probe\.cases=0: must be an integer >= 1"),
        (["+algorithm.n_prefix=1"], r"algorithm\.n_prefix: unknown key; "),
        (
            ["algorithm=luffy", "algorithm.prefix_fraction=0"],
            r"algorithm\.prefix_fraction=0: must be a number in",
        ),
        (["algorithm=luffy", "algorithm.gamma=0"], r"algorithm\.gamma=0: must be a finite number > 0"),
        (["algorithm=luffy", "algorithm.n_prefix=-1"], r"algorithm\.n_prefix=-1: must be an integer >= 0"),
        (
            ["algorithm=luffy", "algorithm.baseline_members=on_policy", "algorithm.normalize_std=true"],
            r"algorithm\.baseline_members='on_policy': must be all, unless",
        ),
        (["algorithm.dynamic_sampling=-1"], r"algorithm\.dynamic_sampling=-1: must be an integer >= 0"),
        (["recorder.every=-1"], r"recorder\.every=-1: must be an integer >= 0"),
        (["algorithm._target_=3"], r"algorithm\._target_=3: must be the full name of a class"),
    ],
)
def test_what_is_refused(composed: Composed, overrides: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check(composed(*overrides))


@pytest.mark.parametrize("key", ["api_key", "wandb_api_key", "apikey", "password", "client_secret", "hf_token"])
def test_secrets_are_refused_and_not_repeated(composed: Composed, key: str) -> None:
    with pytest.raises(SettingsError, match=rf"logger\.{key}: must be the NAME of an environment variable") as caught:
        check(composed(f"+logger.{key}=s3cr3t-value"))
    assert "s3cr3t" not in str(caught.value)


def test_the_name_of_an_environment_variable_is_no_secret(composed: Composed) -> None:
    config = composed("+logger.api_key=MY_KEY")
    with pytest.raises(SettingsError, match=r"logger\.api_key: unknown key"):
        check(config)  # refused for being unknown, not for its value


@pytest.mark.parametrize("strategy", ["deepspeed_stage_3", "ddp_spawn", "dpp"])
def test_a_strategy_that_is_not_supported_is_refused(composed: Composed, strategy: str) -> None:
    with pytest.raises(SettingsError, match=rf"trainer\.strategy='{strategy}': must be one of auto, ddp,"):
        check(composed(f"trainer.strategy={strategy}"))
    assert check(composed("trainer=ddp_cpu")).trainer.strategy == "ddp"


def test_compute_matched_grpo_has_the_tokens_that_rti_spent(composed: Composed) -> None:
    config = check(composed("experiment=compute_matched"))
    assert (config.budget.tokens, config.run.max_iterations, config.corrector.target) == (55_077, 1000, None)


def test_what_does_nothing_for_the_verifier_is_refused(composed: Composed) -> None:
    with pytest.raises(SettingsError, match=r"verifier\.steps_per_call: unknown key"):
        check(composed("+verifier.steps_per_call=2"))
    assert check(composed("validator.steps_per_call=2")).validator.options.steps_per_call == 2
