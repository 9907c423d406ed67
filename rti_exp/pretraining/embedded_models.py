"""The embedded policy and its teacher, trained from random weights into transformers folders.

Each model has a separate process. torch is imported there only, after the config has been checked.
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
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rti_exp.config.settings import SettingsError
from rti_exp.pretraining.corpus import Document, draw_document, teacher_document
from rti_exp.pretraining.recipe import WarmstartSettings
from rti_exp.processes.signals import end_with_the_parent
from rti_exp.randomness import derive_seed
from rti_exp.rollout.renderer import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DOCUMENTS_FOR_THE_TOKENIZER = 6000


def train_embedded_models(settings: WarmstartSettings) -> list[Path]:
    """Train `settings.models`. Returns their folders.

    Raises:
        SettingsError: a folder exists, or cannot be created.
    """
    folders = _prepare_folders(settings)
    print(f"training {', '.join(map(str, folders.values()))}; drawing the documents first", flush=True)
    started = time.monotonic()
    with (
        ProcessPoolExecutor(
            max_workers=min(len(folders), os.cpu_count() or 1),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_exit_with_the_parent,
        ) as pool,
        _removed_on_interrupt(folders),
    ):
        jobs = {name: pool.submit(_train, name, _unfinished(folder), settings) for name, folder in folders.items()}
        losses = {name: job.result() for name, job in jobs.items()}
    recipe = {key: value for key, value in asdict(settings).items() if key not in ("out", "overwrite", "models")}
    for name, folder in folders.items():
        text = json.dumps({"settings": recipe, "loss": losses[name]}, indent=1) + "\n"
        (_unfinished(folder) / "warmstart.json").write_text(text, encoding="utf-8")
        _finish(folder)
        print(f"{folder}: loss {losses[name]:.4f}")
    print(f"{time.monotonic() - started:.0f} seconds")
    return list(folders.values())


def _prepare_folders(settings: WarmstartSettings) -> dict[str, Path]:
    """The folder of each model. An empty `_unfinished` folder next to each takes the files first."""
    folders = {name: Path(settings.out).expanduser() / name for name in settings.models}
    for folder in folders.values():
        if folder.exists() and not settings.overwrite:
            raise SettingsError(f"out={settings.out!r}: {folder} exists; set overwrite=true, or choose another out=")
    for folder in folders.values():
        unfinished = _unfinished(folder)
        try:
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if unfinished.is_dir():  # left by a killed process
                shutil.rmtree(unfinished)
            unfinished.mkdir(parents=True)
        except OSError as error:
            raise SettingsError(f"out={settings.out!r}: cannot create {folder} ({error.strerror})") from error
    return folders


def _unfinished(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.unfinished")


def _finish(folder: Path) -> None:
    """Give the finished files their name. Without `overwrite` the folder is complete or absent."""
    unfinished = _unfinished(folder)
    if folder.exists():
        shutil.copytree(unfinished, folder, dirs_exist_ok=True)
        shutil.rmtree(unfinished)
    else:
        unfinished.rename(folder)


def _exit_with_the_parent() -> None:
    """In a child: exit on Ctrl-C without a traceback, and when the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_the_parent()


@contextlib.contextmanager
def _removed_on_interrupt(folders: Mapping[str, Path]) -> Iterator[None]:
    """On an interrupt, end the children and remove their unfinished files."""
    try:
        yield
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
            process.join()
        for folder in folders.values():
            shutil.rmtree(_unfinished(folder), ignore_errors=True)
        raise


def _train(name: str, folder: Path, settings: WarmstartSettings) -> float:
    """Train one model into `folder`. Returns its mean loss over the last 100 steps, in nats per trained token."""
    import torch
    import transformers

    from rti_exp.pretraining.progress import ProgressLines, mean
    from rti_exp.pretraining.supervised_training import new_model, train
    from rti_exp.rollout.token_renderer import TokenRenderer

    transformers.logging.disable_progress_bar()
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = _tokenizer(settings)
    renderer = TokenRenderer(tokenizer)
    recipe = settings if name == "tiny" else settings.teacher
    rng = random.Random(derive_seed(settings.seed, "corpus", name))
    documents = [_draw(name, renderer, settings, rng) for _ in range(recipe.training.documents)]
    model = new_model(recipe.size, settings.vocab_size, derive_seed(settings.seed, "weights", name))
    lines = ProgressLines(f"{name}: ", steps=recipe.training.steps, every=100)
    losses = train(model, documents, recipe.training, derive_seed(settings.seed, "order", name), lines)
    if name == "teacher":
        model = model.half()  # half the size to ship; loaded as float32
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return mean(losses[-100:])


def _tokenizer(settings: WarmstartSettings) -> PreTrainedTokenizerFast:
    """The tokenizer that all models share."""
    from rti_exp.pretraining.tokenizer import TextCollector, train_tokenizer

    collector = TextCollector()
    rng = random.Random(derive_seed(settings.seed, "tokenizer"))
    for _ in range(DOCUMENTS_FOR_THE_TOKENIZER):
        for name in ("tiny", "teacher"):
            _draw(name, collector, settings, rng)
    return train_tokenizer(collector.texts, settings.vocab_size)


def _draw(name: str, renderer: Renderer, settings: WarmstartSettings, rng: random.Random) -> Document:
    if name == "tiny":
        return draw_document(renderer, settings.prompts, settings.prior, rng)
    return teacher_document(renderer, settings.prompts, settings.prior, settings.teacher.right, rng)
