"""The learners of `distributed_cases.py`, sharded over processes by FSDP2.

`python -m tests.support.sharding_cases OUTPUT` with RANK-like variables set by the test; process 0 saves OUTPUT.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.strategies import ModelParallelStrategy

from rti_exp.runs import Run
from rti_exp.training.checkpoint_callback import IterationCheckpoint
from rti_exp.training.distributed import leave
from rti_exp.training.fsdp import gathered
from tests.support.distributed_cases import RUN, gradients, whole_run
from tests.support.training_fakes import ALGORITHM, fit, sampled


def sharded() -> dict[str, Any]:
    """Options of a Trainer; a strategy is used once."""
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    return {"strategy": strategy, "devices": 2}


def resumed(make: Any, folder: Path) -> dict[str, torch.Tensor]:
    """The weights after two iterations, with a new module for the second."""
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0
    module = None
    for last in (1, 2):
        run = Run(folder, key="key", study="study") if first else None
        module = sampled(run=RUN, settings=ALGORITHM)
        callback = IterationCheckpoint(run=run, run_key="key", checkpoints=folder / "checkpoints")
        options: dict[str, Any] = {**make(), **({"limit_train_batches": 1} if last == 1 else {})}
        fit(module, [callback], **options)
        assert module.iteration == last
        if run is not None:
            run.close()
    assert module is not None
    return gathered(module.model.state_dict())


def cases(make: Any, folder: Path) -> dict[str, Any]:
    return {
        "interventions": gradients(make(), boxes="abcd", corrector=True, updates=2),
        "uneven": gradients(make(), boxes="abc", corrector=True, updates=1),
        "one_idle_process": gradients(make(), boxes="ac", corrector=False, updates=3),
        "no_signal": gradients(make(), boxes="cd", corrector=False, updates=2),
        "reference": gradients(make(), boxes="abcd", corrector=True, updates=1, beta=0.1),
        "run": whole_run(make()),
        "resumed": resumed(make, folder),
    }


def main(output: str) -> None:
    try:
        found = cases(sharded, Path(output).parent / "resumed")
    finally:
        leave()
    if os.environ["LOCAL_RANK"] == "0":
        torch.save(found, output)


def alone() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return cases(dict, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1])
