"""The policy's weights as files for another process: a checkpoint's names, adapters merged, the head untied."""

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


def weight_folder(size: int) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for `size` bytes; in memory if there is enough room."""
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * size
    return tempfile.TemporaryDirectory(prefix="rti_exp.vllm.", dir=MEMORY if in_memory else None)


def write_config(model: PreTrainedModel, folder: Path, dtype: str) -> None:
    """Writes config.json of the model with an untied head.

    When vLLM is sent new weights it skips a head that is tied to the embeddings, so the head would stay stale.
    """
    config: Any = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    config.dtype = dtype
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)


def write_weights(model: PreTrainedModel, folder: Path, dtype: torch.dtype) -> None:
    """Writes safetensors files of at most `SHARD_BYTES` each, unless one tensor is larger."""
    shard: dict[str, Tensor] = {}
    size = number = 0
    for name, tensor in plain_weights(model):
        stored = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype)
        if stored.data_ptr() == tensor.data_ptr():
            stored = stored.clone()  # safetensors refuses tensors that share memory
        if shard and size + stored.nbytes > SHARD_BYTES:
            save_file(shard, folder / f"weights-{number:05}.safetensors")
            shard, size, number = {}, 0, number + 1
        shard[name] = stored.contiguous()
        size += stored.nbytes
    save_file(shard, folder / f"weights-{number:05}.safetensors")


def plain_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Each weight under its name in a model without adapters, with the adapters merged; a tied head is listed too."""
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    for name, tensor in model.state_dict().items():
        if ".lora_" in name:
            continue
        layer, is_base, parameter = name.partition(".base_layer.")
        if not is_base:
            yield name, tensor
        else:
            yield f"{layer}.{parameter}", _merged(adapted[layer]) if parameter == "weight" else tensor


@torch.no_grad()
def _merged(layer: Any) -> Tensor:
    weight = layer.get_base_layer().weight
    added = sum((layer.get_delta_weight(name).float() for name in layer.active_adapters), torch.zeros(()))
    return (weight.float() + added).to(weight.dtype)
