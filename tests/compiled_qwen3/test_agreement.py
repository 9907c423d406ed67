"""Which models get the fast path, and what happens where compiled code does not work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rti_exp.compiled_qwen3 import agreement, decode_kernels, fast_path, layer_kernels, matmul
from rti_exp.models.recompute import recompute_layers
from tests.support.fakes import tiny_gpt2, tiny_model
from tests.support.qwen3 import SIZES, random_qwen3

SCRIPT = """
import torch; torch.set_num_threads(1)
from tests.support.fakes import tiny_model
from rti_exp.models.fast_path import fast_path
print(fast_path(tiny_model()) is not None)
"""


def run_script(folder: Path | None = None, **environment: str) -> tuple[str, list[str]]:
    """Output and log lines of a fresh process that imports from `folder` before all others."""
    root = Path(__file__).parents[2]
    folders = [str(path) for path in (folder, root) if path is not None]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.strip(), process.stderr.splitlines()


def test_a_numba_that_cannot_be_imported_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text('raise ImportError("Numba needs NumPy 2.4 or less. Got NumPy 9.9.")\n')
    output, lines = run_script(tmp_path)
    assert output == "False"
    assert lines == [
        "compiled code does not work here (ImportError: Numba needs NumPy 2.4 or less. Got NumPy 9.9.): "
        "transformers' own code runs instead, which is slower"
    ]


def test_numba_switched_off_is_no_warning() -> None:
    assert run_script(NUMBA_DISABLE_JIT="1") == ("False", [])


def test_without_a_writable_cache_folder_code_is_compiled_all_the_same(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    code = (
        "from pathlib import Path; import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import kernel; print(kernel.double(21), kernel.double.stats.cache_path)"
    )
    (tmp_path / "kernel.py").write_text(
        "from rti_exp.compiled_qwen3.numba_compiler import compiled\n"
        "@compiled\ndef double(number):\n    return 2 * number\n"
    )
    (tmp_path / "__pycache__").touch()  # a file where a folder would be
    environment = {name: str(blocked) for name in ("NUMBA_CACHE_DIR", "HOME", "XDG_CACHE_HOME")}
    process = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.split() == ["42", "None"]


@pytest.fixture
def warnings_are_new() -> None:
    agreement._warn.cache_clear()


def fail(*_arguments: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.usefixtures("warnings_are_new")
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (decode_kernels, "advance"),
        (decode_kernels, "copy"),
        (layer_kernels, "norm"),
        (layer_kernels, "choose_backward"),
        (matmul, "times_transposed"),
    ],
)
def test_code_that_fails_is_one_warning_and_no_fast_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, fail)
    for user in ("rollout_decoder", "autograd_steps"):
        if module is matmul:
            monkeypatch.setattr(f"rti_exp.compiled_qwen3.{user}.{name}", fail)
    assert [fast_path(tiny_model()) for _ in range(2)] == [None, None]
    assert caplog.messages == [
        "compiled code does not work here (OSError: [Errno 28] No space left on device): "
        "transformers' own code runs instead, which is slower"
    ]


@pytest.mark.parametrize("part", ["rollout_decoder.RolloutDecoder", "packed_decoder.PackedDecoder"])
@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_a_decoder_that_differs_is_no_fast_path(monkeypatch: pytest.MonkeyPatch, part: str, factor: float) -> None:
    module, _, name = part.partition(".")
    decoder = getattr(sys.modules[f"rti_exp.compiled_qwen3.{module}"], name)
    states = decoder.states
    monkeypatch.setattr(decoder, "states", lambda *arguments: states(*arguments) * factor)
    assert fast_path(tiny_model()) is None


def patched() -> Any:
    """A change that no attribute shows: the check of the hidden states notices it."""
    model: Any = tiny_model()
    block = model.model.layers[1].mlp
    forward = block.forward
    block.forward = lambda states: forward(states) * 1.001
    return model


def hooked() -> Any:
    model: Any = tiny_model()
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    return model


def recomputed() -> Any:
    model = tiny_model()
    recompute_layers(model)
    return model


def windowed() -> Any:
    """With a window longer than the rows of the check."""
    values = {key: value for key, value in tiny_model().config.to_dict().items() if key != "layer_types"}
    window = {"use_sliding_window": True, "sliding_window": 200, "max_window_layers": 0}
    return Qwen3ForCausalLM(Qwen3Config(**{**values, **window}))


def replaced(make_module: Callable[[Any], nn.Module], name: str) -> Callable[[], Any]:
    def make() -> Any:
        model: Any = tiny_model()
        block = model.model if name == "embed_tokens" else model.model.layers[1].mlp
        setattr(block, name, make_module(getattr(block, name)))
        return model

    return make


def with_bias(old: nn.Linear) -> nn.Linear:
    """A bias of 0, which changes no state and would not be trained."""
    new = nn.Linear(old.in_features, old.out_features)
    new.weight = old.weight
    nn.init.zeros_(new.bias)
    return new


def with_scaled_gradient(old: nn.Embedding) -> nn.Embedding:
    return nn.Embedding(old.num_embeddings, old.embedding_dim, scale_grad_by_freq=True, _weight=old.weight.detach())


def partly_in_bf16() -> Any:
    model: Any = tiny_model()
    model.model.norm.to(torch.bfloat16)
    return model


@pytest.mark.parametrize(
    "make",
    [
        patched,
        hooked,
        recomputed,
        windowed,
        replaced(with_bias, "up_proj"),
        replaced(nn.Sequential, "up_proj"),
        replaced(with_scaled_gradient, "embed_tokens"),
        tiny_gpt2,
        lambda: LlamaForCausalLM(LlamaConfig(**{**SIZES, "head_dim": 8})),
        lambda: random_qwen3(attention_bias=True),
        lambda: random_qwen3(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
        lambda: tiny_model(attention="eager"),
        lambda: tiny_model().bfloat16(),
        partly_in_bf16,
    ],
)
def test_other_models_have_no_fast_path(make: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    assert fast_path(make().eval()) is None
    assert caplog.messages == []


def test_large_models_and_vocabularies_have_no_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(4 * parameter.numel() for parameter in tiny_model().parameters())
    for name, limit in (("LARGEST_WEIGHTS", size), ("LARGEST_VOCABULARY", 400)):
        with monkeypatch.context() as patch:
            patch.setattr(agreement, name, limit)
            assert fast_path(tiny_model()) is not None
            patch.setattr(agreement, name, limit - 1)
            assert fast_path(tiny_model()) is None


def test_other_sizes_threads_and_default_types(caplog: pytest.LogCaptureFixture) -> None:
    for model in (tiny_model(vocab_size=30), random_qwen3(head_dim=10, intermediate_size=83), random_qwen3()):
        assert fast_path(model) is not None
    frozen = tiny_model().requires_grad_(False)
    assert fast_path(frozen) is not None
    path = fast_path(tiny_model())
    assert path is not None
    assert path.applies()
    torch.set_num_threads(2)
    assert not path.applies()
    assert fast_path(tiny_model()) is None
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        assert fast_path(random_qwen3().float()) is not None
    finally:
        torch.set_default_dtype(torch.float32)
    assert caplog.messages == []
