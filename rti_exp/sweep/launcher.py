"""The default launcher of `-m`: each job a process of its own, `hydra.launcher.n_jobs` of them at once.

    python -m rti_exp.train -m gate.delta=0,5,20,inf hydra.launcher.n_jobs=2

Jobs that are done are skipped without a process; equal configs are one job; a job that raises, exits or is
killed fails alone. Other launchers (`hydra/launcher=joblib`, `submitit_slurm`) can be chosen as ever.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.job_settings import study_name
from rti_exp.config.settings import SettingsError
from rti_exp.processes.cpus import usable_cpus

if TYPE_CHECKING:
    from rti_exp.sweep.configs import SweepConfigs

TARGET = "hydra_plugins.rti_exp_launcher.ProcessLauncher"


@dataclass
class LauncherConfig:
    _target_: str = TARGET
    n_jobs: int | None = None
    """Processes at once; null: as many as there are cores."""


@dataclass
class Outcome:
    """The exit code of what ran last; `rti_exp.train` exits with it."""

    code: int = 0
    study_dir: Path | None = None
    """The study of a sweep that another launcher runs, whose table is still to be shown."""


outcome = Outcome()


STUDY = "RTI_EXP_STUDY"
"""Tells the workers of another launcher what the sweep is called."""


class SweepCallback(Callback):
    """Notes which study another launcher's sweep is, since that launcher shows no table at its end."""

    def on_multirun_start(self, config: DictConfig, **arguments: Any) -> None:
        if config.hydra.launcher._target_ != TARGET:
            study = study_name(config.study, os.environ.get(STUDY, "sweep"), config.size)
            outcome.study_dir = Path(config.runs_root).expanduser() / study


class KnownConfigs:
    """Hydra's config loader, but that the jobs of a sweep are not composed twice."""

    def __init__(self, loader: ConfigLoader, configs: SweepConfigs) -> None:
        self._loader = loader
        self._configs = configs

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        return self._configs.composed(sweep_overrides)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class ProcessLauncher(Launcher):
    """Runs the jobs of a sweep as child processes of `python -m rti_exp.train`."""

    def __init__(self, n_jobs: int | None = None) -> None:
        self.n_jobs = n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from rti_exp.sweep.configs import SweepConfigs

        loader = hydra_context.config_loader
        self.hydra_context = hydra_context
        self.config = config
        self.configs = SweepConfigs(lambda overrides: loader.load_sweep_config(config, list(overrides)))
        # The sweeper has the same context: it composes each job of a batch, to see that it can be.
        hydra_context.config_loader = KnownConfigs(loader, self.configs)  # pyright: ignore[reportAttributeAccessIssue]

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run what is not done yet. A failed job is told by `outcome`, not by its `JobReturn`, so that a
        sweeper goes on.

        Raises:
            SettingsError: a job's config is bad; then none is started.
            RunUnwritable: the study's folder cannot be created or written.
            KeyboardInterrupt: after the children have ended.
        """
        from rti_exp.sweep.jobs import Sweep
        from rti_exp.sweep.overrides import swept_by
        from rti_exp.sweep.runner import SweepRunner

        n_jobs = usable_cpus() if self.n_jobs is None else self.n_jobs
        if n_jobs < 1:
            raise SettingsError(f"hydra.launcher.n_jobs={n_jobs}: must be an integer >= 1, or null")
        # Of the whole sweep: with hydra.sweeper.max_batch_size these are the jobs of one batch.
        keys = swept_by(self.config)
        sweep = Sweep.plan(job_overrides, self.configs, n_jobs=n_jobs, flags=self._flags(), keys=keys)
        outcome.code = max(outcome.code, SweepRunner(sweep).run())
        return [self._job_return(overrides) for overrides in job_overrides]

    def _flags(self) -> list[str]:
        """What the command line said besides overrides, for the children."""
        flags = ["--config-name", str(self.config.hydra.job.config_name)]
        for source in self.config.hydra.runtime.config_sources:
            if source.provider == "command-line":
                flags += ["--config-dir", source.path]
        return flags

    def _job_return(self, overrides: Sequence[str]) -> JobReturn:
        result: Any = JobReturn(overrides=overrides, cfg=OmegaConf.create({}), hydra_cfg=self.config)
        result.status = JobStatus.COMPLETED
        result.return_value = None
        return result
