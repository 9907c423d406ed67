"""One job: its directory, its lock, its status, and the training in between.

torch is imported only once the config is checked, the policy is there, and the directory is ours.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Config
from rti_exp.engines.base import EngineUnusable
from rti_exp.evaluation.pass_rates import too_few_tasks
from rti_exp.experiment.build import build_experiment, build_logger
from rti_exp.experiment.checks import check_parts
from rti_exp.experiment.trainer import check_accelerator, prepare_process
from rti_exp.processes.signals import end_with_the_parent, handled
from rti_exp.runs import Run, RunBroken, RunDone, RunLocked, is_done, now
from rti_exp.runs.redaction import redact_output
from rti_exp.sweep.display import next_commands
from rti_exp.sweep.ranks import OtherRanks, RankFailed, reporting
from rti_exp.sweep.runner import SWEEP_PID
from rti_exp.tracking.loggers import check_logger, unfailing

if TYPE_CHECKING:
    from rti_exp.tracking.loggers import RunLogger

PATIENCE_SECONDS = 15.0
"""How long a sweep's job waits for the directory: the job of a sweep that was killed may still be ending."""
SINGLE = "single"
"""The study of a run that is no part of a sweep."""
DONE, FAILED, BAD_CONFIG, INTERRUPTED = 0, 1, 2, 130


class Interrupted(BaseException):
    """A signal asked the run to end. No KeyboardInterrupt: Lightning would exit with 1 on that."""


def run_job(cfg: DictConfig, *, overrides: Sequence[str] = (), default_study: str = SINGLE) -> int:
    """Train one run to its end; its exit code: 0 done (or done before), 1 failed, 2 bad config, 130 interrupted.

    Raises:
        SettingsError: the config is bad; nothing has been written.
        RunUnwritable: the run directory cannot be created or written.
    """
    redact_output()
    config = check(cfg)
    study = config.top.study_or(default_study)
    directory = config.directory(study)
    done = not config.top.fresh and is_done(directory)
    if not _is_first_rank(config):  # rank 0 holds the directory
        end_with_the_parent()  # else it may wait for rank 0, which is gone, for half an hour
        with reporting(directory):
            check_parts(config)
            return DONE if done else _train(config, None, directory)
    check_parts(config)
    if done:
        print(f"already done: {directory} (fresh=true starts over)")
        return DONE
    check_logger(config)
    check_accelerator(config.trainer.accelerator)
    try:
        run = Run.open(
            directory,
            key=config.key,
            study=study,
            config=config.plain,
            overrides=[text for text in overrides if not text.startswith("hydra.")],
            seed=config.run.seed,
            fresh=config.top.fresh,
            patience=PATIENCE_SECONDS if _end_with_the_sweep() else 0.0,
        )
    except RunDone as error:  # by the process that held it meanwhile
        print(error)
        return DONE
    except (RunLocked, RunBroken) as error:
        print(error, file=sys.stderr)
        return FAILED
    try:
        print(f"run {config.key} in {directory}")
        code = _recorded(config, run)
    finally:
        run.close()
    if code == DONE and default_study == SINGLE and SWEEP_PID not in os.environ:
        print(f"done: {directory}", *next_commands(directory.parent), sep="\n")
    return code


def _end_with_the_sweep() -> bool:
    """Whether this is a sweep's child; then it gets a SIGTERM when the sweep is gone, however that ended."""
    parent = os.environ.get(SWEEP_PID)
    if parent is None:
        return False
    end_with_the_parent()
    if os.getppid() != int(parent):
        raise Interrupted("the sweep is gone")
    return True


def _is_first_rank(config: Config) -> bool:
    """Whether this is global rank 0, by what torchrun, Lightning or SLURM have told the process."""

    def told(name: str) -> int | None:
        return int(os.environ[name]) if os.environ.get(name) else None

    rank = told("RANK")  # torchrun's, whose nodes need not be in SLURM's order
    if rank is not None:
        return rank == 0
    if told("LOCAL_RANK") or told("NODE_RANK"):
        return False
    # SLURM numbers also the tasks of runs that are one process each.
    several = config.trainer.devices * config.trainer.num_nodes > 1
    return not (several and told("SLURM_PROCID"))


def _recorded(config: Config, run: Run) -> int:
    """Train, and write down how it ended."""
    try:
        with _signals_as_interrupt():
            return _train(config, run, run.directory)
    except Interrupted as error:
        _finish(run, "interrupted", None)
        print(f"interrupted ({error}); the same command goes on from the last checkpoint", file=sys.stderr)
        return INTERRUPTED
    except RankFailed as error:
        _finish(run, "failed", error)
        print(f"failed: {error}", file=sys.stderr)
        return FAILED
    except SettingsError as error:
        _finish(run, "failed", error)
        print(f"bad config: {error}", file=sys.stderr)
        return BAD_CONFIG
    except EngineUnusable as error:  # the user's to put right (a key, a name), as the message says
        _finish(run, "failed", error)
        print(f"failed: {error}", file=sys.stderr)
        return FAILED
    except BaseException as error:
        _finish(run, "failed", error)
        traceback.print_exc()
        return FAILED


def _finish(run: Run, state: str, error: BaseException | None) -> None:
    if is_done(run.directory):  # what came after that is no matter of the run's
        return
    try:
        if isinstance(error, RankFailed):
            run.update(state=state, ended=now(), error=error.record)
        else:
            run.finish(state, error)
    except OSError as broken:  # a full disk: the status from before stands
        print(f"the state {state!r} could not be written: {broken}", file=sys.stderr)


def _train(config: Config, run: Run | None, directory: Path) -> int:
    prepare_process(config.run.seed, config.trainer.threads)
    logger = build_logger(config, run) if run is not None else None
    state = "failed"
    try:
        if run is None:
            build_experiment(config, None, directory=directory).fit()
        else:
            _fit(config, run, logger)
            run.finish("done")
        state = "done"
    except Interrupted:
        state = "interrupted"
        raise
    finally:
        if logger is not None and run is not None:
            _end_logger(logger, state, run)
    return DONE


def _fit(config: Config, run: Run, logger: RunLogger | None) -> None:
    """
    Raises:
        RankFailed: another rank broke.
    """
    several = config.trainer.devices * config.trainer.num_nodes > 1
    ranks = OtherRanks(run.directory) if several else None
    with contextlib.nullcontext() if ranks is None else ranks.watched(functools.partial(_end_at_once, run, ranks)):
        experiment = build_experiment(config, run, directory=run.directory)
        if ranks is not None:
            ranks.trainer = experiment.trainer
        if told := too_few_tasks(config.evaluation.tasks, len(experiment.heldout)):
            print(told)
        run.listeners.append(_printer(config))
        if logger is not None:
            run.listeners.append(unfailing(logger.log))
        experiment.fit()


def _end_at_once(run: Run, ranks: OtherRanks, record: dict[str, str]) -> None:
    """Another rank broke. No exception would reach the main thread while it hangs in a collective operation."""
    error = RankFailed(record)
    _finish(run, "failed", error)
    print(f"failed: {error}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    for child in ranks.children:
        child.kill()
    os._exit(FAILED)


def _end_logger(logger: RunLogger, state: str, run: Run) -> None:
    """A logger that breaks here changes neither how the run ended nor its error."""
    try:
        logger.finish(state, run)
    except Exception:  # code of others: W&B's, for one
        traceback.print_exc()
        print(f"the logger could not be ended; the run is {state}", file=sys.stderr)


def _printer(config: Config) -> Any:
    """A line for each metrics row."""

    def show(row: Mapping[str, Any]) -> None:
        iteration = f"{row['iteration']}/{config.run.max_iterations}"
        if row["kind"] == "eval":
            scores = ", ".join(
                f"{name} {value:.3f}" for name, value in row.items() if name.startswith("pass@") and value
            )
            print(f"evaluation {iteration}: {scores or 'no success'}", flush=True)
        if row["kind"] != "train":
            return
        print(
            f"iteration {iteration}: reward {_number(row.get('reward/mean'))}, "
            f"accepted {row.get('funnel/accepted', 0)} of {row.get('funnel/attempts', 0)}, "
            f"{_number(row.get('time/iteration'))} s",
            flush=True,
        )

    return show


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


@contextlib.contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGINT and SIGTERM raise `Interrupted`; a second one does nothing while the run ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: object) -> None:
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    with handled((signal.SIGINT, signal.SIGTERM), handler):
        yield
