"""`python -m rti_exp.warmstart`: loadable folders, identical for one seed; existing folders are kept."""

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from rti_exp.rollout.token_renderer import TokenRenderer

SMALL = [
    "training.steps=4",
    "training.documents=64",
    "training.documents_per_step=8",
    "teacher.training.steps=2",
    "teacher.training.documents=16",
    "teacher.training.documents_per_step=8",
    "size.hidden=32",
    "size.layers=1",
]
COMMAND = [sys.executable, "-m", "rti_exp.warmstart"]


def warmstart(folder: Path, *keys: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *keys], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_it_trains_a_policy_and_a_teacher_that_train_can_load(tmp_path: Path) -> None:
    finished = warmstart(tmp_path, "out=made", *SMALL)
    assert finished.returncode == 0, finished.stderr
    assert "tiny: step 4 of 4, loss" in finished.stdout
    assert "made/tiny: loss" in finished.stdout
    assert "Writing model shards" not in finished.stderr
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "made" / "tiny")
    assert policy.config.hidden_size == 32
    tokenizers = [PreTrainedTokenizerFast.from_pretrained(tmp_path / "made" / name) for name in ("tiny", "teacher")]
    assert TokenRenderer(tokenizers[0]).stop_ids == (2,)
    assert tokenizers[0].backend_tokenizer.to_str() == tokenizers[1].backend_tokenizer.to_str()
    recorded = json.loads((tmp_path / "made" / "tiny" / "warmstart.json").read_text())["settings"]
    assert recorded["training"]["steps"] == 4
    assert recorded["prior"]["right"]["nav_hard"] == 0.004

    rerun = warmstart(tmp_path, "out=made", *SMALL)
    assert rerun.returncode == 2
    assert "made/tiny exists; set overwrite=true" in rerun.stderr
    assert "Error executing job" not in rerun.stderr


def descendants(process: int) -> list[int]:
    """All processes below `process`, from /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    children = [pid for pid, parent in parents.items() if parent == process]
    return children + [pid for child in children for pid in descendants(child)]


def alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux do children end with a killed parent")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_it_and_a_rerun_starts_over(tmp_path: Path, number: signal.Signals) -> None:
    running = subprocess.Popen(
        [*COMMAND, "out=made", "models=[tiny]"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: len(descendants(running.pid)) >= 2, 120)
    time.sleep(2.0)
    children = descendants(running.pid)
    assert len(children) >= 2  # a resource tracker and the process that trains
    running.send_signal(number)
    _, errors = running.communicate(timeout=60)
    if number is signal.SIGTERM:
        assert (running.returncode, errors.strip()) == (130, "interrupted")
    wait_until(lambda: not any(map(alive, children)), 20)
    assert not [child for child in children if alive(child)]
    assert not (tmp_path / "made" / "tiny").exists()
    if number is signal.SIGKILL:
        rerun = warmstart(tmp_path, "out=made", *SMALL, "models=[tiny]")
        assert rerun.returncode == 0, rerun.stderr
        assert [path.name for path in (tmp_path / "made").iterdir()] == ["tiny"]


def test_an_interrupt_ends_with_one_line(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*COMMAND, "out=made"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Background jobs of a shell ignore SIGINT, and so do their children; a foreground process does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_until((tmp_path / "made" / "teacher.unfinished").is_dir, 120)
    time.sleep(2.0)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors.strip()) == (130, "interrupted")
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.slow
def test_the_seed_fixes_every_bit(tmp_path: Path) -> None:
    for out, seed in (("first", 0), ("repeated", 0), ("reseeded", 1)):
        assert warmstart(tmp_path, f"out={out}", f"seed={seed}", "models=[tiny]", *SMALL).returncode == 0
    assert weights(tmp_path / "first" / "tiny") == weights(tmp_path / "repeated" / "tiny")
    assert weights(tmp_path / "first" / "tiny") != weights(tmp_path / "reseeded" / "tiny")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("prior.guess=2", "prior.guess=2"),
        ("prior.corrector=0.9", "sum to 1"),
        ("models=[big]", "models='big': must be a list (one of tiny, teacher each)"),
        ("priors.guess=0.1", "priors"),
        ("training.steps=0", "training.steps=0"),
        ("out=/proc/nowhere", "out='/proc/nowhere': cannot create"),
    ],
)
def test_bad_keys_are_refused_before_anything_slow(key: str, message: str, tmp_path: Path) -> None:
    refused = warmstart(tmp_path, key)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "policies").exists()
