"""The GPUs that a process's vLLM sees."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


def visible_devices(devices: Sequence[int], tensor_parallel: int, device: torch.device) -> str | None:
    """CUDA_VISIBLE_DEVICES for this process's worker; None leaves it unchanged.

    Without `devices` it is `device`, the one that trains. Otherwise the process with LOCAL_RANK r gets the r-th
    `tensor_parallel` of them.

    Raises:
        ValueError: there are too few devices.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else None
    if not devices:
        if device.type != "cuda":
            return None
        chosen = [device.index if device.index is not None else torch.cuda.current_device()]
    else:
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        chosen = list(devices[rank * tensor_parallel : (rank + 1) * tensor_parallel])
        if len(chosen) < tensor_parallel:
            raise ValueError(
                f"engine.devices={list(devices)}: must have {tensor_parallel} for each process of the machine, "
                f"{(rank + 1) * tensor_parallel} for this one"
            )
    return ",".join(str(index) if names is None else names[index] for index in chosen)
