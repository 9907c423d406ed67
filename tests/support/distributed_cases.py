"""Runs of small learners for test_distributed.py, alone or as one of several processes under DDP.

`python -m tests.support.distributed_cases OUTPUT` with RANK-like variables set by the test; process 0 saves OUTPUT.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import AlgorithmSettings, EvaluationSettings, RunSettings
from rti_exp.runs import Run, read_lines
from rti_exp.training.callbacks import training_callbacks
from rti_exp.training.checkpoint_callback import IterationCheckpoint
from rti_exp.training.checkpoints import latest_valid_checkpoint
from rti_exp.training.distributed import leave
from rti_exp.training.fsdp import gathered
from rti_exp.training.learner import RTIModule
from rti_exp.training.metrics import is_timing
from rti_exp.training.policy_update import DivergedError
from tests.support.fakes import GuessWorld, tiny_model
from tests.support.training_fakes import ALGORITHM, RENDERER, KeepingModule, acted, fit, groups_of, sampled

RUN = default_settings(RunSettings, seed=5, max_iterations=2, tasks_per_iteration=4, group_size=4)
BOXES = GuessWorld().tasks("train")


def gradients(
    options: dict[str, Any],
    *,
    boxes: str,
    corrector: bool,
    updates: int,
    beta: float = 0.0,
    refills: int = 0,
    per_iteration: int | None = None,
) -> Any:
    """What two iterations on these boxes give: gradients of each step, metrics, rewards.

    With `refills`, `per_iteration` leaves some of the boxes over for them.
    """
    tasks = [task for task in BOXES if task.payload["box"] in boxes]
    module = acted(
        run=dataclasses.replace(RUN, tasks_per_iteration=per_iteration or len(tasks)),
        settings=default_settings(
            AlgorithmSettings,
            updates=updates,
            gradient_clip=math.inf,
            micro_batch_tokens=90,
            beta=beta,
            dynamic_sampling=refills,
        ),
        corrector=corrector,
        model=tiny_model(sharpen=2.0).double(),
        module_class=KeepingModule,
    )
    fit(module, tasks=tasks, **options)
    assert isinstance(module, KeepingModule)
    rewards = [[one.reward for one in group.trajectories] for group in groups_of(module)]
    return {"gradients": module.keeper.kept, "metrics": untimed(module), "rewards": rewards}


def untimed(module: RTIModule) -> dict[str, float | None]:
    return {name: value for name, value in module.last_metrics.items() if not is_timing(name)}


def whole_run(options: dict[str, Any]) -> Any:
    """A run with all callbacks: rows, names of the checkpoints, weights on this process."""
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0
    module = sampled(run=RUN, settings=ALGORITHM)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), key="key", study="study") if first else None
        callbacks = training_callbacks(
            run=run,
            heldout=module.rollouts.collector.environment.tasks("heldout"),  # pyright: ignore[reportAttributeAccessIssue]
            evaluation=default_settings(EvaluationSettings, every=1, tasks=5, samples=2),
            decode=RENDERER.text,
            recorder_every=1,
            checkpoint=IterationCheckpoint(run=run, run_key="key", checkpoints=Path(folder) / "checkpoints"),
        )
        fit(module, callbacks, **options)
        kept = gathered(module.model.state_dict())
        if run is None:
            return None
        state = latest_valid_checkpoint(run.checkpoints, "key")
        run.close()
        assert state is not None
        return {"rows": list(read_lines(run.metrics.path)), "saved": state["model"], "kept": kept}


class Poisoned:
    """A collector that breaks the log-probs on the second process only."""

    def __init__(self, collector: Any) -> None:
        self.collector = collector
        self.environment = collector.environment

    def collect(self, *args: Any, **kwargs: Any) -> Any:
        groups = self.collector.collect(*args, **kwargs)
        if os.environ.get("LOCAL_RANK") != "1":
            return groups

        def broken(one: Any) -> Any:
            turns = [dataclasses.replace(t, action_log_probs=(math.nan,) * len(t.action_ids)) for t in one.turns]
            return dataclasses.replace(one, turns=tuple(turns))

        return [dataclasses.replace(group, trajectories=tuple(map(broken, group.trajectories))) for group in groups]


def diverged(options: dict[str, Any]) -> str:
    module = sampled(run=RUN)
    module.rollouts.collector = Poisoned(module.rollouts.collector)
    try:
        fit(module, **options)
    except DivergedError as error:
        return str(error)
    return "went on"


def cases(**options: Any) -> dict[str, Any]:
    return {
        "interventions": gradients(options, boxes="abcd", corrector=True, updates=2),
        "uneven": gradients(options, boxes="abc", corrector=True, updates=1),
        "one_idle_process": gradients(options, boxes="ac", corrector=False, updates=3),
        "no_signal": gradients(options, boxes="cd", corrector=False, updates=2),
        "reference": gradients(options, boxes="abcd", corrector=True, updates=1, beta=0.1),
        "refills": gradients(options, boxes="bcd", corrector=False, updates=1, refills=2, per_iteration=2),
        "run": whole_run(options),
    }


def main(output: str) -> None:
    # A DivergedError ends the group of processes: last.
    options = {"strategy": "ddp", "devices": 2}
    try:
        found = {**cases(**options), "diverged": diverged(options)}
    finally:
        leave()
    if os.environ["LOCAL_RANK"] == "0":
        torch.save(found, output)
    print(found["diverged"])


if __name__ == "__main__":
    main(sys.argv[1])
