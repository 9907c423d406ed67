"""Text that would command a tokenizer, a terminal, a browser, a template or a file: everywhere it stays text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import RolloutSettings, Scope
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.rollout.collector import Collector
from rti_exp.runs import Run, read_lines
from rti_exp.training.records import rollout_record
from rti_exp.training.samples import to_samples
from rti_exp.types import Author
from tests.support.faults import HOSTILE, FaultyTown
from tests.support.jobs import FAULTY, WITHOUT_TURNS, environment, run_here
from tests.support.training_fakes import RENDERER

Composed = Callable[..., DictConfig]
VERY_LONG = "a b" * 20_000
SETTINGS = default_settings(RolloutSettings, max_tokens=10**6, max_context=10**7)


@pytest.mark.parametrize("text", [*HOSTILE, VERY_LONG], ids=lambda text: repr(text[:12]))
def test_hostile_text_is_data_in_ids_masks_and_records(text: str, tmp_path: Path) -> None:
    """The policy says it, and the environment says all of it back."""
    world = FaultyTown(fault="hostile", families=["nav_hard"], max_turns=2)
    said = text if text.startswith("{") else f"{{{text}"  # not the end of the episode, but a broken call

    def answer(prompt: str, seed: int) -> str:
        return said

    engine = ScriptedEngine(answer, RENDERER, log_probs=lambda prompt, tokens: [-0.5] * len(tokens))
    collector = Collector(environment=world, engine=engine, renderer=RENDERER, settings=SETTINGS, seed=0)
    [group] = collector.collect(world.tasks("train")[:1], 2, 1)
    control = RENDERER.control_ids
    for one in group.trajectories:
        assert one.error is None
        assert len(one.turns) == 2
        # bos, user and its end, assistant; then the tool's turn with its end, and assistant again
        assert [sum(token in control for token in taken.context_ids) for taken in one.turns] == [4, 3]
        assert [sum(token in control for token in taken.action_ids) for taken in one.turns] == [1, 1]
        assert one.turns[0].message.malformed is not None
        assert one.turns[0].message.tool_calls == ()
    samples = to_samples(group, [1.0, -1.0], Scope.all)
    for one, sample in zip(group.trajectories, samples, strict=True):
        assert sum(sample.loss_mask) == sum(len(taken.action_ids) for taken in one.turns)
        written = [author is not Author.ENVIRONMENT for author in sample.authors]
        assert list(sample.loss_mask) == written
    run = Run(tmp_path / "run", key="key", study="study")
    for _ in range(2):
        run.append_rollouts([rollout_record(1, group, [1.0, -1.0], samples, RENDERER.text)])
    run.close()
    path = tmp_path / "run" / "rollouts.jsonl"
    assert len(path.read_bytes().splitlines()) == len(list(read_lines(path))) == 2
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        json.loads(line, parse_constant=_refuse)
    assert {found.name for found in tmp_path.rglob("*")} <= {
        "run", ".lock", "checkpoints", "metrics.jsonl", "interventions.jsonl", "rollouts.jsonl",
    }  # fmt: skip


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not strict JSON")


class Tags(HTMLParser):
    """The tags of a page, with what is in its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.events: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.events += [name for name, _ in attrs if name.startswith("on")]


def command(module: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_hostile_world_leaves_valid_files_and_an_inert_report(
    composed: Composed, policy_folder: Path, tmp_path: Path
) -> None:
    """A whole run in it, with interventions: files, `runs show`, tables, the page, W&B's table."""
    pages = {}
    for fault in ("none", "hostile"):
        faulty = [text if text != "+env.fault=none" else f"+env.fault={fault}" for text in FAULTY]
        small = [
            *WITHOUT_TURNS,
            *faulty,
            f"policy.path={policy_folder}",
            "max_iterations=2",
            "rollout.max_context=2000",
        ]
        code, directory = run_here(composed(*small, f"runs_root={tmp_path / fault}", "limits.role_failures=1"))
        assert code == 0
        printed = command("rti_exp.report", "single", "--runs-root", str(tmp_path / fault), cwd=tmp_path)
        printed += command("rti_exp.runs", "show", str(directory), cwd=tmp_path)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b]", printed)
        for path in directory.glob("*.jsonl"):
            for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
                json.loads(line, parse_constant=_refuse)
        pages[fault] = next((tmp_path / fault).rglob("report.html")).read_text(encoding="utf-8")
        records: list[Any] = list(read_lines(directory / "interventions.jsonl"))
        assert any("onerror" in record["evidence"] for record in records) == (fault == "hostile")
    tags = {}
    for fault, page in pages.items():
        parser = Tags()
        parser.feed(page)
        tags[fault] = (parser.tags.count("script"), parser.tags.count("img"), parser.events)
    assert tags["hostile"] == tags["none"]
    assert "\x1b" not in pages["hostile"]
    assert "\x00" not in pages["hostile"]
