"""Which GPUs a process' vLLM sees."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


def visible_devices(devices: Sequence[int], tensor_parallel: int, device: torch.device) -> str | None:
    """CUDA_VISIBLE_DEVICES of this process' worker; None leaves it as it is.

    Without `devices` it is the device that trains. Else the process with LOCAL_RANK r takes the r-th
    `tensor_parallel` of them.

    Raises:
        ValueError: there are too few.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not devices:
        if device.type != "cuda":
            return None
        index = device.index if device.index is not None else torch.cuda.current_device()
        return given[index] if given != [""] else str(index)
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    own = devices[rank * tensor_parallel : (rank + 1) * tensor_parallel]
    if len(own) < tensor_parallel:
        raise ValueError(
            f"engine.devices={list(devices)}: must have {tensor_parallel} for each process of the machine, "
            f"{(rank + 1) * tensor_parallel} for this one"
        )
    return ",".join(given[index] if given != [""] else str(index) for index in own)
