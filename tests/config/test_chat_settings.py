"""The date that chat templates are given, and the run key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.check import check
from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import SettingsError
from tests.support.chat_fakes import save_chat_policy


def test_a_date_must_be_one() -> None:
    with pytest.raises(SettingsError, match=r"policy\.chat\.date='today'.*as in 2024-07-26"):
        default_settings(ChatSettings, date="today")


def test_the_date_makes_another_run_only_if_it_is_changed(
    composed: Callable[..., DictConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_chat_policy(tmp_path / "policy")
    monkeypatch.chdir(tmp_path)
    chat = ("policy.path=policy", "probe=none", "policy.chat.thinking=false")
    before = "c310071d1083"
    """The key of the version that had no date."""
    assert check(composed(*chat)).key == before
    changed = check(composed(*chat, "policy.chat.date=2025-03-01"))
    assert changed.key != before
    assert changed.policy.chat.date == "2025-03-01"
