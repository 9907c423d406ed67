"""Each benchmark runs on a small size and prints its table. The measured values are not checked."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "generation.py": (("--tasks", "2", "--members", "2", "--turns", "2", "--repeats", "1"), "| rollout over floor |"),
    "phases.py": (("--tasks", "2", "--repeats", "1", "--iterations", "2"), "| fixed length | update |"),
    "lines.py": (("--tasks", "2", "--iterations", "1"), "| fixed length | update |"),
    "growth.py": (("--only", "tasks", "--smallest", "2", "--repeats", "1"), "| tasks | iteration | 8:"),
    "means.py": (("--tasks", "2", "--repeats", "1", "--iterations", "1", "--only", "bf16"), "| bf16 autocast |"),
    "sweep_overhead.py": (("--jobs", "6"), "| skip: the same sweep, all done, table included |"),
    "log_probs.py": (("--vocabulary", "20000"), "| chunked |"),
    "gpu.py": (("--small", "--iterations", "2", "trainer=cpu"), "| tiny | 2 x 2 |"),
}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def output(script: str, *arguments: str) -> str:
    finished = run(script, *arguments)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", SMALL)
def test_a_benchmark_prints_its_table(script: str) -> None:
    arguments, row = SMALL[script]
    assert row in output(script, *arguments)


@pytest.mark.slow
def test_the_gpu_benchmark_refuses_a_machine_without_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    refused = run("gpu.py")
    assert refused.returncode == 2
    assert "finds no GPU here" in refused.stderr


@pytest.mark.slow
def test_against_trl() -> None:
    if importlib.util.find_spec("trl") is None:
        pytest.skip("needs trl and datasets, in a separate environment (benchmarks/README.md)")
    arguments = ("--sizes", "2x4", "--repeats", "1", "--steps", "2", "--micro-batch", "4")
    assert "TRL over rti_exp" in output("against_trl.py", *arguments)


@pytest.mark.slow
def test_vllm_engine() -> None:
    python = os.environ.get("RTI_VLLM_PYTHON")
    if python is None:
        pytest.skip("needs RTI_VLLM_PYTHON, the interpreter of an environment that has vLLM")
    row = "| the same greedy answers with the new weights | 4 of 4 |"
    assert row in output("vllm_engine.py", "--python", python, "--requests", "4", "--tokens", "8")


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("measure")


def test_exponent(measure: Any) -> None:
    assert measure.exponent((8, 1.0), (64, 8.0)) == pytest.approx(1.0)
    assert measure.exponent((10, 3.0), (100, 300.0)) == pytest.approx(2.0)


def test_table(measure: Any) -> None:
    assert measure.table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_operations_of_a_phase(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 4 wide, head of 10: by hand."""
    phases: Any = importlib.import_module("phases")

    class Config:
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads, head_dim = 10, 4, 2, 2, 2
        tie_word_embeddings = True

    class Model:
        config = Config()

        def parameters(self) -> list[Any]:
            import torch

            return [torch.zeros(10, 4), torch.zeros(60)]  # the tied embedding and head, and 60 other parameters

    work = phases.Work(tokens=5, logits=3, contexts=7)
    # 2 * (60 * 5 + 40 * 3) + 4 * 2 layers * 2 heads * 2 wide * 7
    assert phases.operations(Model(), "rollout", work) == 840 + 224
    assert phases.operations(Model(), "update", work) == 3 * (840 + 224)


def test_fixed_work_has_the_stated_number_of_tokens(measure: Any) -> None:
    fixed: Any = importlib.import_module("fixed_work")
    world = fixed.FixedWorld(max_turns=3, prompt_tokens=20, reply_tokens=12)
    episode = world.start(world.tasks("train")[1])
    assert len(episode.messages[0].content.split()) == 16  # and <|bos|> <|user|> <|end|> <|assistant|>
    from rti_exp.types import Message

    said = Message(role="assistant", content="w1 w2")
    first = episode.step(said)
    assert len(first.observations[0].content.split()) == 8  # and <|end|> <|tool|> <|end|> <|assistant|>
    assert episode.fork([said]).step(said).observations != first.observations
    episode.step(said)
    last = episode.step(said)
    assert last.done
    assert 0 < last.reward < 1
    assert last.reward != fixed.reward_of("w1 w3")
