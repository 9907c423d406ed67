"""The run key: what makes another run, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.check import check, check_stored
from rti_exp.config.identity import VOLATILE
from rti_exp.config.settings import SettingsError

Composed = Callable[..., DictConfig]


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "max_iterations=61",
        "gate.delta=6",
        "corrector=none",
        "verifier=rule",
        "policy.path=elsewhere",
        "env.train_tasks=4",
        "eval.samples=4",
        "trainer.precision=bf16-mixed",
        "prompts.validator.text=judge",
    ],
)
def test_another_experiment_has_another_key(composed: Composed, override: str) -> None:
    assert check(composed(override)).key != check(composed()).key


@pytest.mark.parametrize(
    "override",
    [
        "gate.delta=5",
        "gate.delta=5.0",
        "study=elsewhere",
        "runs_root=/elsewhere",
        "fresh=true",
        "logger=none",
        "logger.project=mine",
        "trainer=ddp_cpu",
        "trainer.devices=4",
        "trainer.threads=2",
        "verifier.checks=[plausible,gold,leak]",
        "gate.shadow=False",
        "seed=0",
        "env.timeout=30",
        "limits.env_failures=1",
    ],
)
def test_the_same_experiment_has_the_same_key(composed: Composed, override: str) -> None:
    assert check(composed(override)).key == check(composed()).key


def test_infinities_are_one_job(composed: Composed) -> None:
    keys = {check(composed(f"gate.delta={text}")).key for text in ("inf", "Inf", "INF", ".inf", "'inf'")}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("seed=0", "e0264655422b"),
        ("seed=3", "1c9dae814fc4"),
        ("corrector=teacher", "94318b13749a"),
        ("corrector=remote", "1c7ccc6c2ce3"),
        ("validator=remote", "875eca669b81"),
        ("validator.policy=builtin:teacher", "8d85a983ae44"),
        ("verifier=remote", "6aea6aed0984"),
        ("verifier=none", "b12c6df25950"),
        ("verifier.path=builtin:teacher", "51b24cb91fa3"),
        ("algorithm=luffy", "0080e44976a9"),
        ("env=tau2_mock", "18573bed4dcc"),
        ("engine=vllm", "d94bddfd2524"),
        ("policy=qwen3_8b", "064292582a5d"),
        ("policy.lora.rank=4", "8215571ea94b"),
        ("probe=none", "4fcb8eb8b032"),
        ("trainer.precision=bf16-true", "4f2b4f5042de"),
    ],
)
def test_run_keys_never_change(composed: Composed, override: str, key: str) -> None:
    """Finished and interrupted runs are found again by their key."""
    assert check(composed(override)).key == key


def test_keys_outside_the_run_key() -> None:
    assert {"study", "runs_root", "fresh", "checkpoint_every", "logger", "trainer", "size", "limits"} == set(VOLATILE)


def test_a_stored_config_of_the_version_before_is_still_read(composed: Composed) -> None:
    """Its endpoints have price keys, and its logger has its former name; a new config with them is refused."""
    config = check(composed("corrector=remote"))
    stored = OmegaConf.create(config.plain)
    OmegaConf.update(stored, "corrector.remote.max_cost", "inf", force_add=True)
    OmegaConf.update(stored, "logger._target_", "rti_exp.loggers.WandbLogger")
    with pytest.raises(SettingsError, match=r"corrector\.remote\.max_cost: unknown key"):
        check(OmegaConf.create(OmegaConf.to_container(stored)))  # pyright: ignore[reportArgumentType]
    OmegaConf.update(stored, "verifier.steps_per_call", 8, force_add=True)
    OmegaConf.update(stored, "verifier.policy", "builtin:teacher")
    del stored.verifier.path
    read = check_stored(stored)
    assert (read.verifier.options.policy, read.verifier.options.path) == (True, "builtin:teacher")
    assert read.key == check(composed("corrector=remote", "verifier.path=builtin:teacher")).key
