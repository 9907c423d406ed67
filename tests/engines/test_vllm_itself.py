"""vLLM itself samples from the policy, before and after the weights change.

Needs vLLM in this environment, or in RTI_VLLM_PYTHON the interpreter of one that has it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rti_exp.config.defaults import default_settings
from rti_exp.config.policy_settings import LoraSettings
from rti_exp.engines.base import GenerateRequest, Sampling
from rti_exp.engines.vllm.engine import VllmEngine
from rti_exp.experiment.parts import default_engine
from rti_exp.models.adapters import add_lora
from tests.support.fakes import tiny_model
from tests.support.vllm_engines import vllm_engine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python() -> str:
    interpreter = os.environ.get("RTI_VLLM_PYTHON")
    if interpreter:
        return interpreter
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs the extra vllm, or RTI_VLLM_PYTHON, the interpreter of an environment that has it")
    return sys.executable


def greedy(prompts: int = 6) -> list[GenerateRequest]:
    sampling = Sampling(temperature=0.0, max_tokens=24, stop_ids=(2,))
    ids = torch.randint(7, 400, (prompts, 12), generator=torch.Generator().manual_seed(0)).tolist()
    return [GenerateRequest(prompt_ids=tuple(row[: 4 + i]), sampling=sampling, seed=i) for i, row in enumerate(ids)]


def check_same(engine: VllmEngine) -> list[tuple[int, ...]]:
    expected = default_engine(engine.model).generate(greedy())
    sampled = engine.generate(greedy())
    for completion, local in zip(sampled, expected, strict=True):
        assert (completion.token_ids, completion.stop_reason) == (local.token_ids, local.stop_reason)
        assert completion.log_probs == pytest.approx(local.log_probs, abs=1e-3)
    assert engine.mismatch.largest < 1e-2
    return [completion.token_ids for completion in sampled]


def test_it_follows_the_weights_of_a_tied_model_with_adapters(python: str) -> None:
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model = tiny_model(hidden_size=128)  # tied; heads of width 32, which vLLM's kernels know
    assert model.config.tie_word_embeddings
    # The model's own generation_config must change nothing.
    model.generation_config.update(do_sample=True, temperature=0.01, repetition_penalty=9.0, eos_token_id=[5, 7])
    add_lora(model, default_settings(LoraSettings, rank=2), seed=0)
    engine = vllm_engine(model=model, python=python, max_context=128, max_batch=8, eager=True, max_difference=0.5)
    try:
        first = check_same(engine)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.3, generator=generator)
            embeddings = model.get_parameter("model.embed_tokens.weight")  # and so the head
            embeddings.add_(torch.randn(embeddings.shape, generator=generator), alpha=0.05)
        engine.sync(1)
        assert check_same(engine) != first
        sampling = Sampling(temperature=1.0, max_tokens=24, stop_ids=(2, 9))
        drawn = [GenerateRequest(prompt_ids=(5, 6), sampling=sampling, seed=2**62 + i) for i in range(4)]
        once, again = engine.generate(drawn), engine.generate(list(reversed(drawn)))
        assert [draw.token_ids for draw in once] == [draw.token_ids for draw in reversed(again)]
        assert len({draw.token_ids for draw in once}) == 4
    finally:
        engine.close()


def test_a_run_of_two_iterations(python: str, tmp_path: Path) -> None:
    keys = [
        "engine=vllm",
        f"engine.python={python}",
        "engine.eager=true",
        "engine.max_context=512",
        "engine.max_batch=32",
        "engine.importance_cap=2",
        "max_iterations=2",
        "tasks_per_iteration=6",
        "group_size=4",
        "algorithm.learning_rate=0.001",
        "eval.tasks=2",
        "eval.samples=1",
        "probe=none",
        "logger=none",
        "recorder.every=1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "rti_exp.train", *keys], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    [metrics] = tmp_path.glob("runs/single/*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    train = [row for row in rows if row["kind"] == "train"]
    assert [row["iteration"] for row in train] == [1, 2]
    assert train[0]["updates/steps"] > 0
    for row in train:
        assert row["engine/compared_tokens"] >= row["tokens/generated"] > 0
        assert row["engine/log_prob_difference_mean"] < 1e-4
        assert row["engine/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
        assert row["engine/truncated_share"] == 0.0
    assert train[1]["time/weights"] > 0  # changed by the first iteration, and sent before the second
