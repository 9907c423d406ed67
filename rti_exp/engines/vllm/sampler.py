"""One vLLM, started when it is first needed, that has the weights which the policy has."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from rti_exp.engines.base import GenerateRequest
from rti_exp.engines.vllm.devices import visible_devices
from rti_exp.engines.vllm.process import WorkerProcess
from rti_exp.engines.vllm.weights import WeightFolder, state_of, write_config, write_weights

START_SECONDS = 1800.0
"""For vLLM's own start, which compiles on a GPU."""
GIB = 2**30


class Sampler:
    """
    Args:
        model: whose weights vLLM is given.
        max_context: positions of a sequence; None leaves them to vLLM.
        max_batch: sequences decoded at once.
        python: an interpreter that has vLLM; None is this one.
        dtype: of vLLM's weights and arithmetic; "auto" is the model's own.
        memory_fraction: of a GPU's memory that vLLM takes, weights included.
        cpu_cache_gib: memory for keys and values on a CPU.
        tensor_parallel: GPUs of one vLLM.
        devices: GPUs that are vLLM's; none of them: the one that trains.
        eager: without CUDA graphs.
        timeout: seconds that one call may take.
        options: further arguments of `vllm.LLM`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_context: int | None,
        max_batch: int,
        python: str | None = None,
        dtype: str = "auto",
        memory_fraction: float = 0.4,
        cpu_cache_gib: int = 1,
        tensor_parallel: int = 1,
        devices: Sequence[int] = (),
        eager: bool = False,
        timeout: float = 600.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.weight_seconds = 0.0
        """Seconds that giving weights took so far: writing them, and vLLM's reading them."""
        self._model = model
        self._python = os.path.expanduser(python) if python else sys.executable
        self._dtype = dtype
        self._cpu_cache_gib = cpu_cache_gib
        self._devices = tuple(devices)
        self._timeout = timeout
        self._options = {
            "skip_tokenizer_init": True,
            "load_format": "dummy",  # the weights come after it
            "generation_config": "vllm",  # no model's own
            "max_model_len": max_context,
            "max_num_seqs": max_batch,
            "tensor_parallel_size": tensor_parallel,
            "gpu_memory_utilization": memory_fraction,
            "enforce_eager": eager,
            **(options or {}),
        }
        self._process: WorkerProcess | None = None
        self._version = 0
        self._given: tuple[Any, ...] | None = None
        """What the weights were when vLLM was last given them."""

    def changed(self, policy_version: int) -> None:
        """The policy has this version now."""
        self._version = policy_version

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process, self._given = None, None

    def generate(self, requests: Sequence[GenerateRequest]) -> list[dict[str, Any]]:
        """What `worker.Sampler.generate` gives, with the weights that the policy has now.

        Raises:
            EngineUnavailable: vLLM cannot be started, or raised; a `WorkerEnded` if its process is gone.
        """
        asked = [
            {
                "prompt_ids": request.prompt_ids,
                "temperature": request.sampling.temperature,
                "top_p": request.sampling.top_p,
                "max_tokens": request.sampling.max_tokens,
                "stop_ids": request.sampling.stop_ids,
                "seed": request.seed,
            }
            for request in requests
        ]
        try:
            process = self._started()
            self._give_weights(process)
            return process.ask({"call": "generate", "requests": asked}, self._timeout)["completions"]
        except BaseException:
            self.close()  # an answer may be under way that nobody waits for
            raise

    def _started(self) -> WorkerProcess:
        if self._process is not None:
            return self._process
        device = next(self._model.parameters()).device
        environment = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        visible = visible_devices(self._devices, self._options["tensor_parallel_size"], device)
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        if device.type == "cpu":
            environment["VLLM_CPU_KVCACHE_SPACE"] = str(self._cpu_cache_gib)
        self._process = WorkerProcess(self._python, environment)
        with tempfile.TemporaryDirectory(prefix="rti_exp.vllm.") as folder:
            write_config(self._model, Path(folder), self._torch_dtype())
            options = {"model": folder, "dtype": self._torch_dtype(), **self._options}
            self._process.ask({"call": "open", "options": options}, START_SECONDS)
        return self._process

    def _torch_dtype(self) -> str:
        return str(self._model.dtype).removeprefix("torch.") if self._dtype == "auto" else self._dtype

    def _give_weights(self, process: WorkerProcess) -> None:
        now = (self._version, state_of(self._model))
        if now == self._given:
            return
        started, dtype = time.perf_counter(), getattr(torch, self._torch_dtype())
        with WeightFolder(sum(one.numel() for one in self._model.parameters()) * dtype.itemsize) as folder:
            write_weights(self._model, folder, dtype)
            process.ask({"call": "weights", "folder": str(folder)}, self._timeout)
        self.weight_seconds += time.perf_counter() - started
        self._given = now
