"""`python -m rti_exp.warmstart`: make an embedded policy and its teacher, as transformers folders.

With `policy=...` it fine-tunes that language model on the same corpus instead (`rti_exp.pretraining.finetune`).

The corpus is drawn from the town, the tokenizer trained on it, then each model in a process of its own.
torch is imported in those processes only, after the config has been checked.
"""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing.managers import SyncManager
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.check import PromptSettings
from rti_exp.config.compose import CONFIG_ERRORS, bad_config
from rti_exp.config.conversion import typed
from rti_exp.config.paths import assets_root
from rti_exp.config.secrets import refuse_secret_arguments
from rti_exp.config.settings import SettingsError, require_at_least
from rti_exp.pretraining import finetune
from rti_exp.pretraining.prior import ModelSize, Prior, TrainingSettings
from rti_exp.processes.signals import end_with_the_parent, signals_as_interrupt

MODELS = ("tiny", "teacher")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSettings:
    right: float = 0.88
    size: ModelSize = field(default_factory=ModelSize)
    training: TrainingSettings = field(default_factory=TrainingSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmstartSettings:
    seed: int = 0
    out: str = "policies"
    overwrite: bool = False
    models: list[str] = field(default_factory=lambda: list(MODELS))
    vocab_size: int = 960
    threads: int = 1
    prior: Prior = field(default_factory=Prior)
    prompts: PromptSettings = field(default_factory=PromptSettings)
    size: ModelSize = field(default_factory=ModelSize)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)

    def __post_init__(self) -> None:
        if not self.models or any(name not in MODELS for name in self.models):
            raise SettingsError(f"models={list(self.models)}: must be a non-empty list out of {list(MODELS)}")
        if self.vocab_size < 700:
            raise SettingsError(f"vocab_size={self.vocab_size}: must be at least 700 (bytes, names, numbers, calls)")
        require_at_least(self, threads=1, seed=0)
        if not 0 <= self.teacher.right <= 1:
            raise SettingsError(f"teacher.right={self.teacher.right}: must be in [0, 1]")


def _check_folders(settings: WarmstartSettings) -> dict[str, Path]:
    """Where each model is to be; an empty folder beside each, `_half` of it, is there to make it in."""
    folders = {name: Path(settings.out).expanduser() / name for name in settings.models}
    for folder in folders.values():
        if folder.exists() and not settings.overwrite:
            raise SettingsError(f"out={settings.out!r}: {folder} is there already; set overwrite=true, or another out=")
    for folder in folders.values():
        half = _half(folder)
        try:
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if half.is_dir():  # of one that was killed
                shutil.rmtree(half)
            half.mkdir(parents=True)
        except OSError as error:
            raise SettingsError(f"out={settings.out!r}: cannot make {folder} ({error.strerror})") from error
    return folders


def _half(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.unfinished")


def _finish(folder: Path) -> None:
    """Give what is made its name; without `overwrite` the folder is there as a whole or not at all."""
    half = _half(folder)
    if folder.exists():
        shutil.copytree(half, folder, dirs_exist_ok=True)
        shutil.rmtree(half)
    else:
        half.rename(folder)


def make(name: str, folder: Path, settings: WarmstartSettings, report: Queue[tuple[str, int, int, float]]) -> float:
    """Make one model; returns its mean training loss over the last 100 steps, in nats per trained token."""
    import torch
    import transformers

    from rti_exp.pretraining import documents as corpus
    from rti_exp.pretraining.tokenizer import TextCollector, make_tokenizer
    from rti_exp.pretraining.training import make_model, train
    from rti_exp.randomness import derive_seed
    from rti_exp.rollout.token_renderer import TokenRenderer

    transformers.logging.disable_progress_bar()
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True)
    prompts = settings.prompts
    texts = TextCollector()
    rng = random.Random(derive_seed(settings.seed, "tokenizer"))
    for _ in range(6000):
        corpus.draw_document(texts, prompts, settings.prior, rng)
        corpus.teacher_document(texts, prompts, settings.prior, settings.teacher.right, rng)
    tokenizer = make_tokenizer(texts.texts, settings.vocab_size)
    renderer = TokenRenderer(tokenizer)
    rng = random.Random(derive_seed(settings.seed, "corpus", name))
    if name == "tiny":
        size, training = settings.size, settings.training
    else:
        size, training = settings.teacher.size, settings.teacher.training
    drawn = []
    for _ in range(training.documents):
        if name == "tiny":
            drawn.append(corpus.draw_document(renderer, prompts, settings.prior, rng))
        else:
            drawn.append(corpus.teacher_document(renderer, prompts, settings.prior, settings.teacher.right, rng))
    model = make_model(size, settings.vocab_size, derive_seed(settings.seed, "weights", name))
    losses: list[float] = []

    def progress(step: int, loss: float) -> None:
        losses.append(loss)
        if step % 10 == 0 or step == training.steps:
            report.put((name, step, training.steps, sum(losses[-100:]) / len(losses[-100:])))

    train(model, drawn, training, derive_seed(settings.seed, "order", name), progress)
    if name == "teacher":
        model = model.half()  # half the bytes to ship; loaded as float32
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(losses[-100:]) / len(losses[-100:])


def _end_silently() -> None:
    """In a child: Ctrl-C ends it without a traceback, and the parent says so; it ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_the_parent()


@contextlib.contextmanager
def _ending_children(folders: Mapping[str, Path]) -> Iterator[None]:
    """On an interrupt the children end, and what they have made by then is taken away."""
    try:
        yield
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            if "Manager" not in process.name:  # that one ends with its own context
                process.terminate()
                process.join()
        for folder in folders.values():
            shutil.rmtree(_half(folder), ignore_errors=True)
        raise


def run(settings: WarmstartSettings) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    folders = _check_folders(settings)
    console = Console()
    console.print(f"making {', '.join(str(folder) for folder in folders.values())}; the corpus is drawn first")
    started = time.monotonic()
    context = multiprocessing.get_context("spawn")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    manager = SyncManager(ctx=context)
    manager.start(_end_silently)
    with (
        manager,
        ProcessPoolExecutor(
            max_workers=min(len(folders), os.cpu_count() or 1), mp_context=context, initializer=_end_silently
        ) as pool,
        _ending_children(folders),
        Progress(*columns, TimeRemainingColumn(), console=console) as bars,
    ):
        report: Any = manager.Queue()
        jobs = {name: pool.submit(make, name, _half(folder), settings, report) for name, folder in folders.items()}
        tasks = {name: bars.add_task(f"{name} (drawing documents)", total=None) for name in folders}
        while not all(job.done() for job in jobs.values()) or not report.empty():
            while not report.empty():
                name, step, steps, loss = report.get()
                bars.update(tasks[name], description=f"{name} loss {loss:.3f}", completed=step, total=steps)
                if not console.is_terminal and step % 200 == 0:
                    print(f"{name}: step {step} of {steps}, loss {loss:.3f}", flush=True)
            time.sleep(0.2)
        losses = {name: job.result() for name, job in jobs.items()}
    seconds = time.monotonic() - started
    for name, folder in folders.items():
        recipe = {key: value for key, value in asdict(settings).items() if key not in ("out", "overwrite", "models")}
        made = {"settings": recipe, "loss": losses[name]}
        (_half(folder) / "warmstart.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        _finish(folder)
        console.print(f"{folder}: loss {losses[name]:.4f}")
    console.print(
        f"{seconds:.0f} seconds; measure them with: python -m rti_exp.roles policy.path={folders[settings.models[0]]}"
    )


def main() -> None:
    OmegaConf.register_new_resolver("rti_exp.assets", lambda: str(assets_root()), replace=True)
    former = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra would exit with 1 for a bad config
    configs: list[dict[str, Any]] = []

    def task(cfg: DictConfig) -> None:  # no more than this: Hydra prints a line of its own for an error within
        plain = OmegaConf.to_container(cfg, resolve=True)
        assert isinstance(plain, dict)
        configs.append({str(key): value for key, value in plain.items()})

    try:
        refuse_secret_arguments(sys.argv[1:])
        with signals_as_interrupt():
            if finetune.chosen(sys.argv[1:]):
                finetune.run(sys.argv[1:])
                return
            hydra.main(version_base="1.3", config_path=str(assets_root() / "conf"), config_name="warmstart")(task)()
            for settings in [typed(WarmstartSettings, config, "") for config in configs]:
                run(settings)
    except CONFIG_ERRORS as error:
        sys.exit(bad_config(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        if former is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)


if __name__ == "__main__":
    main()
