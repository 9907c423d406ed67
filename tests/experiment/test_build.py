"""Parts of another package: they get their own keys, checked, and the objects that they work with."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.config.role_settings import RolePrompt
from rti_exp.config.settings import SettingsError
from rti_exp.experiment.checks import check_parts
from rti_exp.experiment.roles import RoleBuilder
from tests.support.chat_fakes import save_chat_policy


class OwnCorrector:
    def __init__(self, *, policy: Any, prompt: RolePrompt, tries: int = 1, tone: str = "plain") -> None:
        self.made_of = (policy, prompt.text, tries, tone)


def test_a_corrector_of_ones_own(composed: Callable[..., DictConfig]) -> None:
    own = ("~corrector", f"+corrector._target_={__name__}.OwnCorrector")
    config = check(composed(*own, "+corrector.tries=3"))
    roles = RoleBuilder("policy", None, config.prompts, torch.device("cpu"))  # pyright: ignore[reportArgumentType]
    built: Any = roles.corrector(config.corrector)
    assert built.made_of == ("policy", "rewrite: {evidence} | {reason}", 3, "plain")
    with pytest.raises(SettingsError, match=r"corrector\.tires: unknown key; did you mean corrector\.tries\?"):
        check(composed(*own, "+corrector.tires=3"))


class BrokenWorld:
    def __init__(self, *, when: str = "making", **options: Any) -> None:
        self.when = when
        if when == "making":
            raise TypeError("no such service")

    def tasks(self, split: str) -> list[Any]:
        raise KeyError(split)


@pytest.mark.parametrize(("when", "error"), [("making", "TypeError: no such service"), ("asking", "KeyError: 'train'")])
def test_an_environment_that_breaks_is_told_with_its_place(
    composed: Callable[..., DictConfig], when: str, error: str
) -> None:
    config = check(composed(f"env._target_={__name__}.BrokenWorld", f"+env.when={when}"))
    with pytest.raises(SettingsError, match=rf"env\._target_=.*{error} \(.*test_build\.py, line \d+\)"):
        check_parts(config)


@pytest.mark.parametrize(
    ("missing", "told"), [("*.safetensors", "weights"), ("tokenizer.json", "files of a tokenizer")]
)
def test_half_a_policy_folder_is_told_before_it_is_loaded(
    composed: Callable[..., DictConfig], policy_folder: Path, tmp_path: Path, missing: str, told: str
) -> None:
    folder = tmp_path / "half"
    shutil.copytree(policy_folder, folder, ignore=shutil.ignore_patterns(missing))
    with pytest.raises(SettingsError, match=rf"policy\.path=.*: there are no {told} in .*half"):
        check_parts(check(composed(f"policy.path={folder}")))


def test_chat_options_without_a_chat_template_are_refused(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    for changed, told in (("thinking=false", "thinking=False"), ("tool_schemas=short", "tool_schemas='short'")):
        with pytest.raises(SettingsError, match=rf"policy\.chat\.{told}: must be left out .*no chat template"):
            check_parts(check(composed(f"policy.chat.{changed}")))
    check_parts(check(composed("policy.chat.tool_schemas=full")))  # what it is anyway
    # The options are a teacher's too, and this one has a template.
    other = save_chat_policy(tmp_path, "smollm2")
    check_parts(check(composed("policy.chat.thinking=false", "corrector=teacher", f"corrector.path={other}")))
