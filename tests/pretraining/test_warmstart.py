"""`python -m rti_exp.warmstart`: makes loadable folders, the same ones for the same seed, and keeps what is there."""

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def warmstart(folder: Path, *keys: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rti_exp.warmstart", *keys]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_makes_a_policy_and_a_teacher_that_train_takes(tmp_path: Path) -> None:
    done = warmstart(tmp_path, "out=made", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "made/tiny: loss" in done.stdout
    assert "Writing model shards" not in done.stderr
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from rti_exp.rollout.token_renderer import TokenRenderer

    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "made" / "tiny")
    assert policy.config.hidden_size == 32
    tokenizers = [PreTrainedTokenizerFast.from_pretrained(tmp_path / "made" / name) for name in ("tiny", "teacher")]
    assert TokenRenderer(tokenizers[0]).stop_ids == (2,)
    assert tokenizers[0].backend_tokenizer.to_str() == tokenizers[1].backend_tokenizer.to_str()
    noted = json.loads((tmp_path / "made" / "tiny" / "warmstart.json").read_text())
    assert noted["settings"]["training"]["steps"] == 4
    assert noted["settings"]["prior"]["right"]["nav_hard"] == 0.004

    again = warmstart(tmp_path, "out=made", *SMALL)
    assert again.returncode == 2
    assert "made/tiny is there already; set overwrite=true" in again.stderr
    assert "Error executing job" not in again.stderr


def started_by(process: int) -> list[int]:
    """All processes below it, by /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that has just ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below = [pid for pid, parent in parents.items() if parent == process]
    return below + [pid for child in below for pid in started_by(child)]


def alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="children that end with a killed parent are Linux's")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_it_and_it_begins_anew(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "rti_exp.warmstart", "out=made", "models=[tiny]"]
    making = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(children := started_by(making.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2.0)
    assert len(children) >= 3  # a manager, a tracker, the one that trains
    making.send_signal(number)
    _, errors = making.communicate(timeout=60)
    if number is signal.SIGTERM:
        assert (making.returncode, errors.strip()) == (130, "interrupted")
    deadline = time.monotonic() + 20
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [child for child in children if alive(child)]
    assert not (tmp_path / "made" / "tiny").exists()
    if number is signal.SIGKILL:
        again = warmstart(tmp_path, "out=made", *SMALL, "models=[tiny]")
        assert again.returncode == 0, again.stderr
        assert [path.name for path in (tmp_path / "made").iterdir()] == ["tiny"]


def test_an_interrupt_ends_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rti_exp.warmstart", "out=made"]
    making = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs, and so their children, ignore SIGINT; a user at a terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "made" / "teacher.unfinished").is_dir() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2.0)
    making.send_signal(signal.SIGINT)
    _, errors = making.communicate(timeout=60)
    assert (making.returncode, errors.strip()) == (130, "interrupted")
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.slow
def test_the_seed_fixes_every_bit(tmp_path: Path) -> None:
    for out, seed in (("one", 0), ("two", 0), ("three", 1)):
        assert warmstart(tmp_path, f"out={out}", f"seed={seed}", "models=[tiny]", *SMALL).returncode == 0
    assert weights(tmp_path / "one" / "tiny") == weights(tmp_path / "two" / "tiny")
    assert weights(tmp_path / "one" / "tiny") != weights(tmp_path / "three" / "tiny")


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("prior.guess=2", "prior.guess=2"),
        ("prior.corrector=0.9", "sum to 1"),
        ("models=[big]", "models=['big']"),
        ("priors.guess=0.1", "priors"),
        ("training.steps=0", "training.steps=0"),
        ("out=/proc/nowhere", "out='/proc/nowhere': cannot make"),
    ],
)
def test_bad_keys_are_told_before_anything_slow(key: str, told: str, tmp_path: Path) -> None:
    done = warmstart(tmp_path, key)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "policies").exists()
