"""The policy's weights as files for another process: names of a checkpoint, adapters merged, the head untied."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

SHARD_BYTES = 2**31
MEMORY = Path("/dev/shm")
"""Files here never touch a disk."""


def write_config(model: PreTrainedModel, folder: Path, dtype: str) -> None:
    """config.json of the model with a head of its own.

    vLLM leaves out a head that is tied to the embeddings when it is given new weights, so that it would stay stale.
    """
    config: Any = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    config.dtype = dtype
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)


def write_weights(model: PreTrainedModel, folder: Path, dtype: torch.dtype) -> int:
    """safetensors files of at most `SHARD_BYTES` each, unless a tensor alone is larger; the bytes written."""
    shard: dict[str, Tensor] = {}
    size = total = number = 0
    for name, tensor in plain_weights(model):
        held = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype)
        held = held.clone() if held.data_ptr() == tensor.data_ptr() else held  # files know no shared tensors
        if shard and size + held.nbytes > SHARD_BYTES:
            save_file(shard, folder / f"weights-{number:05}.safetensors")
            shard, size, number = {}, 0, number + 1
        shard[name] = held.contiguous()
        size += held.nbytes
        total += held.nbytes
    save_file(shard, folder / f"weights-{number:05}.safetensors")
    return total


def plain_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Each weight by the name that it has without adapters; a tied head is one of its own.

    What an adapter adds is added to the weight that it stands beside.
    """
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    for name, tensor in model.state_dict().items():
        if ".lora_" in name:
            continue
        owner, found, own = name.partition(".base_layer.")
        if not found:
            yield name, tensor
        elif own == "weight":
            yield f"{owner}.{own}", _merged(adapted[owner])
        else:
            yield f"{owner}.{own}", tensor


@torch.no_grad()
def _merged(layer: Any) -> Tensor:
    weight = layer.get_base_layer().weight
    added = sum((layer.get_delta_weight(name).float() for name in layer.active_adapters), torch.zeros(()))
    return (weight.float() + added).to(weight.dtype)


def state_of(model: PreTrainedModel) -> tuple[tuple[int, int], ...]:
    """Changes whenever a parameter is written to in place, or replaced: what autograd counts, not the values."""
    return tuple((parameter.data_ptr(), parameter._version) for parameter in model.parameters())


class WeightFolder:
    """A folder for files that live until they have been read; in memory where there is room."""

    def __init__(self, needed_bytes: int) -> None:
        roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * needed_bytes
        self._folder = tempfile.TemporaryDirectory(prefix="rti_exp.vllm.", dir=MEMORY if roomy else None)

    def __enter__(self) -> Path:
        return Path(self._folder.name)

    def __exit__(self, *rest: object) -> None:
        self._folder.cleanup()
