"""`python -m rti_exp.plan`: sizes computed by hand, and compared with a measured update of the embedded policy."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from omegaconf import DictConfig
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from rti_exp.config.check import check
from rti_exp.config.paths import policy_folder
from rti_exp.experiment.parts import default_engine
from rti_exp.models.known import ARCHITECTURES
from rti_exp.models.memory import plan, sizes
from rti_exp.plan import main
from rti_exp.training.batch import Batch
from rti_exp.training.token_log_probs import TrainedPositions

TOLERANCE = 0.15
"""Relative error of the estimated peak of an update."""


class LiveBytes(TorchDispatchMode):
    """Bytes of the live storages of all tensors that operations create."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[int] = set()
        self.now = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
            if isinstance(output, torch.Tensor):
                self.add(output)
        return outputs

    def add(self, tensor: torch.Tensor) -> None:
        # oneDNN's own tensors have no storage to look at; they are not shared.
        storage: Any = tensor if tensor.is_mkldnn else tensor.untyped_storage()
        key = id(tensor) if tensor.is_mkldnn else storage._cdata
        size = 4 * tensor.numel() if tensor.is_mkldnn else storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.drop, key, size)

    def drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def a_batch(rows: int, length: int, vocabulary: int) -> Batch:
    """The part of a batch that a forward pass reads: all tokens but the first are trained."""
    mask_BT = torch.ones((rows, length), dtype=torch.bool)
    mask_BT[:, 0] = False
    ids_BT = torch.randint(vocabulary, (rows, length))
    return cast(
        Batch, SimpleNamespace(token_ids_BT=ids_BT, loss_mask_BT=mask_BT, lengths_B=torch.full((rows,), length))
    )


def measured_update(folder: Path, rows: int, length: int, *, packed: bool) -> int:
    """Peak bytes of two micro-batches and an optimizer step, weights included."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if not packed:
        model.register_forward_hook(lambda *_: None)  # a model with hooks is called as it is
    forward = TrainedPositions(model)
    assert forward.packs is packed
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for parameter in model.parameters():  # the moments exist from the second step on
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    fixed = 3 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    live = LiveBytes()
    live.known = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    with live:
        for _ in range(2):
            (-forward(a_batch(rows, length, model.config.vocab_size)).log_probs_BT.mean()).backward()
        optimizer.step()
    return fixed + live.peak


@pytest.mark.parametrize(("length", "tokens"), [(96, 2048), (256, 1024)])
def test_the_peak_of_an_update_is_close_to_a_measured_one(
    composed: Callable[..., DictConfig], length: int, tokens: int
) -> None:
    """By the model's own forward pass, as on a GPU."""
    config = check(composed(f"rollout.max_context={length}", f"algorithm.micro_batch_tokens={tokens}"))
    folder = policy_folder("builtin:tiny")
    counted = sizes(config, AutoConfig.from_pretrained(folder))
    estimate = plan(counted, strategy="one", devices=1)
    # The engine's cache is not part of these measurements.
    measured = measured_update(folder, tokens // length, length, packed=False)
    assert estimate.update - estimate.cache == pytest.approx(measured, rel=TOLERANCE)
    assert measured_update(folder, tokens // length, length, packed=True) < measured


@pytest.mark.parametrize("compiled", [False, True])
def test_the_cache_size_is_the_engines(
    composed: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    from rti_exp.compiled_qwen3 import slot_cache
    from rti_exp.engines.base import GenerateRequest, Sampling

    config = check(composed("engine.cache_rows=32", "tasks_per_iteration=4", "group_size=4", "rollout.max_context=191"))
    folder = policy_folder("builtin:tiny")
    counted = sizes(config, AutoConfig.from_pretrained(folder))
    monkeypatch.setattr(slot_cache, "_SMALL_BYTES", 0)  # as for a larger model
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    engine = default_engine(model, cache_rows=32, compiled=compiled)
    requests = [
        GenerateRequest(prompt_ids=(1, 4, seed), sampling=Sampling(max_tokens=188), seed=seed) for seed in range(20, 36)
    ]
    engine.generate(requests)
    engine.generate(
        [GenerateRequest(prompt_ids=(1, 5, request.seed), sampling=request.sampling, seed=0) for request in requests]
    )
    cache: Any = engine._pool.cache
    stores = (
        [*cache.keys, *cache.values]
        if compiled
        else [tensor for layer in cache._slot_layers for tensor in layer.tensors()]
    )
    taken = sum(store.untyped_storage().nbytes() for store in stores)
    assert counted.cache == pytest.approx(taken, rel=0.02)


def test_qwen3_8b_by_hand(composed: Callable[..., DictConfig]) -> None:
    options = ("policy=hf", "policy.path=hub:Qwen/Qwen3-8B", "policy.dtype=bfloat16", "rollout.max_context=64")
    config = check(composed(*options, "algorithm.micro_batch_tokens=64", "engine.max_batch=8", "engine.cache_rows=16"))
    counted = sizes(config, AutoConfig.for_model(**ARCHITECTURES["hub:Qwen/Qwen3-8B"]))
    embeddings = 2 * 151_936 * 4096
    attention = 4096 * (2 * 32 * 128 + 2 * 8 * 128) + 2 * 128
    layer = attention + 3 * 4096 * 12_288 + 2 * 4096
    assert counted.parameters == embeddings + 36 * layer + 4096 == 8_190_735_360
    assert counted.weights == 2 * counted.parameters
    assert counted.layer_weights == 2 * layer
    assert counted.cache == 16 * 64 * 2 * 36 * 8 * 128 * 2
    assert counted.head == 4 * (3 * 2**24 + 151_936 * 4096)
    sharded = plan(counted, strategy="fsdp", devices=8)
    assert sharded.weights == counted.weights + counted.weights // 8 + 2 * counted.layer_weights
    assert sharded.optimizer == 2 * counted.weights // 8
    doubled = plan(counted, strategy="ddp", devices=8)
    assert (doubled.weights, doubled.gradients) == (counted.weights, 2 * counted.weights)


def small(folder: Path) -> Path:
    """A folder with the config of a model and nothing else."""
    folder.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_config_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small(tmp_path / "model")
    assert main([f"policy.path={folder}", "gpu=1", "tflops=1"]) == 0
    printed = capsys.readouterr().out
    parameters = 2 * 100 * 64 + 2 * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 128 + 2 * 64) + 64
    assert f"{parameters / 1000:.3g} k parameters" in printed
    assert "one device: fits into 1 GiB" in printed
    # 96 rollouts of 96 tokens, 8 operations a parameter and token, 24 iterations, 10^12 a second
    assert f"time: at least {8 * parameters * 96 * 96 * 24 / 1e12 / 3600:.3g} hours" in printed


def test_only_adapters_count_as_trained(tmp_path: Path, composed: Callable[..., DictConfig]) -> None:
    folder = small(tmp_path / "model")
    config = check(composed(f"policy.path={folder}", "policy.lora.rank=4", "policy.dtype=bfloat16"))
    counted = sizes(config, AutoConfig.from_pretrained(folder))
    sides = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64)]
    assert counted.trained_parameters == 2 * sum(4 * (rows + columns) for rows, columns in sides)
    assert counted.trained_weights == 4 * counted.trained_parameters


def test_gradient_checkpointing_keeps_fewer_activations(composed: Callable[..., DictConfig]) -> None:
    architecture = AutoConfig.for_model(**{**ARCHITECTURES["hub:Qwen/Qwen3-0.6B"], "num_hidden_layers": 8})
    whole = sizes(check(composed("policy=hf", "policy.path=x")), architecture)
    less = sizes(check(composed("policy=hf", "policy.path=x", "policy.gradient_checkpointing=true")), architecture)
    assert less.activations < whole.activations / 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["policy.path=nowhere"], "policy.path='nowhere': there is no nowhere/config.json"),
        (["policy=remote"], "policy=remote: uses no memory here"),
        (["gpu=0"], "gpu='0': must be a finite number > 0"),
        (["tflops=fast"], "tflops='fast': must be a finite number > 0"),
        (["policy.pth=x"], "policy.pth: unknown key"),
    ],
)
def test_bad_config_is_exit_code_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert f"bad config: {message}" in capsys.readouterr().err


def test_an_invalid_config_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no such"}')
    assert main([f"policy.path={tmp_path}"]) == 2
    assert "is not a model's config" in capsys.readouterr().err


def test_the_qwen3_8b_option_fits_into_80_gib(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy=qwen3_8b", "trainer=gpu", "gpu=80"]) == 0
    assert "one device: fits into 80 GiB" in capsys.readouterr().out


def test_vllm_takes_a_share_of_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"policy.path={small(tmp_path / 'model')}", "gpu=1", "engine=vllm", "engine.memory_fraction=0.25"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "vLLM takes another 25% of each of these devices" in printed
    assert "one device: fits into 0.75 GiB" in printed
    assert main([*arguments, "engine.devices=[1]"]) == 0
    printed = capsys.readouterr().out
    assert "vLLM takes" not in printed
    assert "one device: fits into 1 GiB" in printed
