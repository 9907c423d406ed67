"""engine=vllm without vLLM: the worker runs a stand-in for it (tests/support/fake_vllm)."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rti_exp.config.defaults import default_settings
from rti_exp.config.engine_settings import VllmEngineSettings, check_engine
from rti_exp.config.policy_settings import LoraSettings
from rti_exp.config.settings import SettingsError
from rti_exp.engines.base import (
    EngineUnavailable,
    EngineUnusable,
    GenerateRequest,
    RequestsFailed,
    Sampling,
    ScoreRequest,
)
from rti_exp.engines.vllm.devices import visible_devices
from rti_exp.engines.vllm.engine import VllmEngine
from rti_exp.engines.vllm.mismatch import Mismatch, summed
from rti_exp.engines.vllm.weights import plain_weights, weight_folder, write_config, write_weights
from rti_exp.experiment.parts import default_engine
from rti_exp.models.adapters import add_lora, merge_lora
from tests.support.fakes import tiny_model
from tests.support.vllm_engines import FAKE_VLLM, request, vllm_engine


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE_VLLM))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))


def head(engine: VllmEngine) -> float:
    return float(dict(plain_weights(engine.model))["lm_head.weight"].square().mean())


def test_completions_are_scored_by_the_policy_and_the_mismatch_is_counted():
    engine = vllm_engine(importance_cap=0.5)
    asked = [request(seed=3), request(seed=2**63 - 1, tokens=2), request(seed=4, log_probs=False)]
    completions = engine.generate(asked)
    assert [completion.token_ids for completion in completions] == [(13, 13, 13, 2), (17, 2), (14, 14, 14, 2)]
    assert {completion.stop_reason for completion in completions} == {"stop"}
    scores = default_engine(engine.model).score(
        [ScoreRequest(prompt_ids=(5, 6, 7), token_ids=completion.token_ids) for completion in completions[:2]]
    )
    sampler = -1.0 - head(engine)
    for completion, policy in zip(completions[:2], scores, strict=True):
        weights = [min(math.exp(log_prob - sampler), 0.5) for log_prob in policy]
        assert completion.log_probs == pytest.approx(policy, abs=1e-5)
        assert completion.importance_weights == pytest.approx(weights, rel=1e-4)
    # A request that does not use its log-probs keeps the sampler's, and nothing is computed or counted for it.
    assert completions[2].log_probs == pytest.approx((sampler,) * 4)
    assert completions[2].importance_weights == ()
    assert (engine.generated_tokens, engine.scored_tokens) == (10, 0)
    differences = [log_prob - sampler for policy in scores for log_prob in policy]
    assert engine.mismatch.tokens == 6
    assert engine.mismatch.difference == pytest.approx(sum(map(abs, differences)), rel=1e-4)
    assert engine.mismatch.largest == pytest.approx(max(map(abs, differences)), rel=1e-4)
    assert engine.mismatch.truncated == sum(math.exp(difference) >= 0.5 for difference in differences)
    engine.close()


def test_weights_follow_each_change_and_are_sent_once():
    engine = vllm_engine()
    first = head(engine)
    for _ in range(2):
        [completion] = engine.generate([request(log_probs=False)])
        assert completion.log_probs[0] == pytest.approx(-1.0 - first)
    seconds = engine.weight_seconds
    engine.sync(0)
    engine.generate([request()])
    assert engine.weight_seconds == seconds  # nothing has changed
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(2.0)
    engine.sync(1)
    [completion] = engine.generate([request(log_probs=False)])
    assert completion.log_probs[0] == pytest.approx(-1.0 - 4 * first)
    assert completion.policy_version == 1
    assert engine.weight_seconds > seconds
    engine.close()


@pytest.mark.slow
def test_failures_of_the_process():
    engine = vllm_engine()
    with pytest.raises(EngineUnavailable, match="vLLM's generate raised RuntimeError: bad prompt"):
        engine.generate([request(368)])
    with pytest.raises(EngineUnavailable, match=r"process ended in generate \(SIGABRT\); its last lines:(.|\n)*out of"):
        engine.generate([request(366)])
    with pytest.raises(FloatingPointError, match="not finite"):
        engine.generate([request(369)])
    [completion] = engine.generate([request(370)])  # the first process ends, the second answers
    assert completion.token_ids == (13, 13, 13, 2)
    engine.close()
    with pytest.raises(EngineUnavailable, match="open raised ValueError: no such option"):
        vllm_engine(options={"raises": True}).generate([request()])
    with pytest.raises(EngineUnavailable, match=r"engine\.python='/nowhere': cannot be started"):
        vllm_engine(python="/nowhere").generate([request()])


@pytest.mark.slow
def test_a_call_that_takes_too_long_ends_the_process():
    engine = vllm_engine(timeout=20.0)
    engine.generate([request()])
    process = engine._worker._process
    assert process is not None
    engine._worker._options = dataclasses.replace(engine._worker._options, timeout=0.5)
    start = time.monotonic()
    with pytest.raises(
        EngineUnavailable, match=r"generate took longer than engine\.timeout=0\.5 s|weights took longer"
    ):
        engine.generate([request(367)])
    assert time.monotonic() - start < 30
    assert process.process.returncode is not None


def test_too_long_requests_are_refused_before_the_process_starts():
    engine = vllm_engine(max_context=9)
    with pytest.raises(RequestsFailed) as caught:
        engine.generate([request(tokens=6), request(tokens=7)])
    assert {index: failure.reason for index, failure in caught.value.failures.items()} == {
        1: "3 + 7 tokens exceed the 9 that the engine has positions for"
    }
    with pytest.raises(ValueError, match="at least one token"):
        engine.generate([GenerateRequest(prompt_ids=(), sampling=Sampling(), seed=0)])
    assert engine.generate([]) == []
    assert engine._worker._process is None


def test_a_sampler_with_another_model_ends_the_run():
    engine = vllm_engine(max_difference=1e-6, max_context=None)
    engine.generate([request()])  # too few tokens to judge by
    with pytest.raises(EngineUnusable, match=r"differ from the policy's by .* nats per token on average"):
        engine.generate([request(tokens=300)])
    engine.close()


@pytest.mark.slow
def test_the_process_ends_with_the_engine_and_with_its_owner(tmp_path: Path):
    engine = vllm_engine()
    engine.generate([request()])
    worker = engine._worker._process
    assert worker is not None
    pid = worker.process.pid
    del engine, worker
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    code = (
        "import os, signal\nfrom tests.support.vllm_engines import request, vllm_engine\n"
        "engine = vllm_engine()\nengine.generate([request()])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(engine._worker._process.process.pid))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = os.pathsep.join([str(FAKE_VLLM), str(Path(__file__).parents[2])])
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=False)
    pid, ends = int((tmp_path / "pid").read_text()), time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z (" not in Path(f"/proc/{pid}/stat").read_text().replace(") Z", " Z ("):
        assert time.monotonic() < ends
        time.sleep(0.2)


def test_written_weights_are_those_of_a_plain_model_with_an_untied_head(tmp_path: Path):
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model = tiny_model()
    add_lora(model, default_settings(LoraSettings, rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    weights = dict(plain_weights(model))
    merged = merge_lora(model).state_dict()
    assert set(weights) == set(merged)
    assert "lm_head.weight" in weights
    for name, tensor in merged.items():
        torch.testing.assert_close(weights[name], tensor, msg=name)
    write_weights(model, tmp_path, torch.bfloat16)
    stored = load_file(tmp_path / "weights-00000.safetensors")
    assert torch.equal(stored["lm_head.weight"], merged["lm_head.weight"].bfloat16())
    write_config(model, tmp_path, "bfloat16")
    assert type(model.config).from_pretrained(tmp_path).tie_word_embeddings is False
    assert model.config.tie_word_embeddings is True


def test_large_weights_are_split_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rti_exp.engines.vllm.weights.SHARD_BYTES", 20_000)
    model = tiny_model()
    write_weights(model, tmp_path, torch.float32)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    loaded = {name: tensor for path in files for name, tensor in load_file(path).items()}
    assert set(loaded) == set(model.state_dict())


def test_the_weights_folder_is_removed():
    with weight_folder(10) as folder:
        (Path(folder) / "x").touch()
    assert not Path(folder).exists()


def test_mismatches_add_up():
    first, second = Mismatch(), Mismatch()
    # Ratios e^.5 and e^-.25; then 1.
    first.add([-1.0, -2.0], [-1.5, -1.75], [1.2, 0.7788], 1.2)
    second.add([-3.0], [-3.0], [1.0], 1.2)
    assert summed([first, second]).metrics(weighted=True) == {
        "engine/compared_tokens": 3,
        "engine/log_prob_difference_max": 0.5,
        "engine/log_prob_difference_mean": pytest.approx(0.25),
        "engine/ratio_mean": pytest.approx((1.6487212707 + 0.7788007831 + 1.0) / 3),
        "engine/importance_weight_mean": pytest.approx((1.2 + 0.7788 + 1.0) / 3),
        "engine/truncated_share": pytest.approx(1 / 3),
    }
    assert Mismatch().metrics(weighted=False) == {
        "engine/compared_tokens": 0,
        "engine/log_prob_difference_max": None,
        "engine/log_prob_difference_mean": None,
        "engine/ratio_mean": None,
    }


def test_devices(monkeypatch: pytest.MonkeyPatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert visible_devices((), 1, cpu) is None
    assert visible_devices((), 1, gpu) == "1"
    assert visible_devices((4, 5, 6, 7), 2, gpu) == "4,5"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert visible_devices((4, 5, 6, 7), 2, gpu) == "6,7"
    with pytest.raises(ValueError, match=r"engine\.devices=\[4, 5\]: must have 2 for each process"):
        visible_devices((4, 5), 2, gpu)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2,GPU-a,GPU-b")
    assert visible_devices((), 1, gpu) == "2"
    assert visible_devices((0, 2), 1, gpu) == "GPU-a"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"importance_cap": 0.0}, "engine.importance_cap=0.0: must be a finite number > 0"),
        ({"importance_cap": math.inf}, "engine.importance_cap=inf"),
        ({"memory_fraction": 1.0}, "engine.memory_fraction"),
        ({"tensor_parallel": 2}, "at most the number of engine.devices"),
        ({"devices": [1, 1]}, "each once"),
        ({"dtype": "int8"}, "engine.dtype='int8'"),
        ({"max_context": 1}, "engine.max_context=1"),
        ({"timeout": 0.0}, "engine.timeout"),
        ({"max_batch": 0}, "engine.max_batch=0"),
    ],
)
def test_invalid_settings(options, message):
    with pytest.raises(SettingsError, match=message.replace(".", r"\.")):
        default_settings(VllmEngineSettings, **options)


def test_the_run_key_does_not_depend_on_where_vllm_is(composed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from rti_exp.config.check import check

    plain = check(composed("engine=vllm"))
    same = ("engine.python=/x", "engine.timeout=5", "engine.memory_fraction=0.9", "engine.devices=[3]")
    assert check(composed("engine=vllm", *same)).key == plain.key
    keys = {
        check(composed("engine=vllm", option)).key for option in ("engine.importance_cap=2", "engine.dtype=bfloat16")
    }
    assert len({*keys, plain.key, check(composed()).key}) == 4
    with pytest.raises(SettingsError, match=r"engine\.python='/x': must be an interpreter that has vLLM"):
        check_engine(check(composed("engine=vllm", "engine.python=/x")).engine.options)
    (without := tmp_path / "python").write_text("#!/bin/sh\necho False\n")
    without.chmod(0o755)
    for path, answer in ((without, "False"), (shutil.which("true"), "nothing")):
        with pytest.raises(SettingsError, match=rf"must be an interpreter that has vLLM .* it said {answer}$"):
            check_engine(check(composed("engine=vllm", f"engine.python={path}")).engine.options)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"needs the package vllm: pip install 'rti-exp\[vllm\]'"):
        check_engine(plain.engine.options)
