"""A run with a chat model, adapters and recomputed layers, from the command line: train, rerun, evaluate, export."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.chat_fakes import save_chat_policy

pytestmark = pytest.mark.slow


def command(module: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"rti_exp.{module}", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("rank", [0, 2])
def test_train_rerun_evaluate_and_export(tmp_path: Path, rank: int) -> None:
    if rank:
        pytest.importorskip("peft", reason="the extra lora is not installed")
    base = save_chat_policy(tmp_path / "base", "smollm2")
    keys = [
        "policy=hf",
        f"policy.path={base}",
        f"policy.lora.rank={rank}",
        "policy.gradient_checkpointing=true",
        "policy.chat.tool_schemas=short",
        "algorithm=opd",  # a loss that trains whatever the rewards are
        f"algorithm.teacher={base}",
        "algorithm.learning_rate=0.01",
        "rollout.max_tokens=8",
        "rollout.max_context=1900",
        "tasks_per_iteration=2",
        "group_size=2",
        "eval.tasks=1",
        "eval.samples=1",
        "env.max_turns=2",
        "probe=none",
        "logger=none",
    ]
    command("train", *keys, "max_iterations=2", cwd=tmp_path)
    command("train", *keys, "max_iterations=2", cwd=tmp_path)  # done: nothing happens
    [run] = [path for path in (tmp_path / "runs" / "single").iterdir() if path.is_dir()]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["kind"] == "train"]
    assert [row["iteration"] for row in train] == [1, 2]
    assert all(row["tokens/trained"] > 0 for row in train)
    size = max(path.stat().st_size for path in (run / "checkpoints").iterdir())
    out = tmp_path / "out"
    command("export", run.name, f"out={out}", cwd=tmp_path)
    before, after = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (base, out))
    whole = 3 * 4 * sum(parameter.numel() for parameter in before.parameters())  # weights and two moments
    assert size < whole / 2 if rank else size > whole / 2
    changed = [
        name for name, weight in before.state_dict().items() if not torch.equal(weight, after.state_dict()[name])
    ]
    assert changed
    assert not rank or "model.embed_tokens.weight" not in changed
    table = command("evaluate", f"run={run}", "eval.samples=2", cwd=tmp_path)
    assert "pass@2" in table
