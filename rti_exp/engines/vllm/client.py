"""The worker that samples: started when it is first needed, and sent the policy's weights whenever they change."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from rti_exp.engines.base import GenerateRequest
from rti_exp.engines.vllm.devices import visible_devices
from rti_exp.engines.vllm.process import WorkerProcess
from rti_exp.engines.vllm.weights import weight_folder, write_config, write_weights

START_SECONDS = 1800.0
"""Time limit of vLLM's own start, which compiles on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How the worker runs."""

    python: str | None
    """An interpreter that has vLLM; None is this one."""
    dtype: str
    """Of vLLM's weights and arithmetic; "auto" is the model's own."""
    memory_fraction: float
    """Share of a GPU's memory that vLLM takes, weights included."""
    cpu_cache_gib: int
    """Memory for keys and values on a CPU."""
    tensor_parallel: int
    """GPUs of one vLLM."""
    devices: Sequence[int]
    """GPUs reserved for vLLM; without any it shares the one that trains."""
    eager: bool
    """Without CUDA graphs."""
    timeout: float
    """Seconds that one call may take."""
    options: Mapping[str, Any]
    """Further arguments of `vllm.LLM`."""


class Sampled(NamedTuple):
    """A completion, with vLLM's own log-probs."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]


class WorkerClient:
    """
    Args:
        model: the policy, whose weights vLLM is sent.
        max_context: positions of a sequence; None leaves them to vLLM.
        max_batch: sequences decoded at once.
    """

    def __init__(
        self, model: PreTrainedModel, options: WorkerOptions, *, max_context: int | None, max_batch: int
    ) -> None:
        self.weight_seconds = 0.0
        """Seconds spent on sending weights so far: writing them, and vLLM's reading them."""
        self._model = model
        self._options = options
        self._max_context = max_context
        self._max_batch = max_batch
        self._process: WorkerProcess | None = None
        self._sent_version: int | None = None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process, self._sent_version = None, None

    def generate(self, requests: Sequence[GenerateRequest], policy_version: int) -> list[Sampled]:
        """Completions by the policy's current weights, whose version this is.

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
            process = self._start() if self._process is None else self._process
            if policy_version != self._sent_version:
                self._send_weights(process)
                self._sent_version = policy_version
            answer = process.ask({"call": "generate", "requests": asked}, self._options.timeout)
        except BaseException:
            self.close()  # a late answer must not be taken for the next call's
            raise
        return [Sampled(tuple(sampled["token_ids"]), tuple(sampled["log_probs"])) for sampled in answer["completions"]]

    def _start(self) -> WorkerProcess:
        options, device = self._options, next(self._model.parameters()).device
        environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        visible = visible_devices(options.devices, options.tensor_parallel, device)
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        if device.type == "cpu":
            environment["VLLM_CPU_KVCACHE_SPACE"] = str(options.cpu_cache_gib)
        python = os.path.expanduser(options.python) if options.python else sys.executable
        self._process = process = WorkerProcess(python, environment)
        with tempfile.TemporaryDirectory(prefix="rti_exp.vllm.") as folder:
            write_config(self._model, Path(folder), self._dtype)
            llm_options = {
                "model": folder,
                "dtype": self._dtype,
                "skip_tokenizer_init": True,
                "load_format": "dummy",  # the weights follow
                "generation_config": "vllm",  # not the model's own
                "logprobs_mode": "processed_logprobs",  # of the distribution that samples
                "max_model_len": self._max_context,
                "max_num_seqs": self._max_batch,
                "tensor_parallel_size": options.tensor_parallel,
                "gpu_memory_utilization": options.memory_fraction,
                "enforce_eager": options.eager,
                **options.options,
            }
            process.ask({"call": "open", "options": llm_options}, START_SECONDS)
        return process

    @property
    def _dtype(self) -> str:
        dtype = self._options.dtype
        return str(self._model.dtype).removeprefix("torch.") if dtype == "auto" else dtype

    def _send_weights(self, process: WorkerProcess) -> None:
        started, dtype = time.perf_counter(), getattr(torch, self._dtype)
        size = sum(parameter.numel() for parameter in self._model.parameters()) * dtype.itemsize
        with weight_folder(size) as folder:
            write_weights(self._model, Path(folder), dtype)
            process.ask({"call": "weights", "folder": folder}, self._options.timeout)
        self.weight_seconds += time.perf_counter() - started
