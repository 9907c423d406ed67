"""Fine-tuning of a language model on the town, into a transformers folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.check import check
from rti_exp.config.compose import composed
from rti_exp.config.conversion import refuse_options, typed
from rti_exp.config.paths import assets_root, policy_folder
from rti_exp.config.policy_settings import PolicySettings, check_lora
from rti_exp.config.settings import SettingsError
from rti_exp.experiment.trainer import silence_libraries
from rti_exp.pretraining.recipe import FineTuningSettings

if TYPE_CHECKING:
    from rti_exp.models.load import Loaded


def names_a_policy(arguments: Sequence[str]) -> bool:
    """Whether the arguments of rti_exp.warmstart choose a policy to fine-tune."""
    return any(text.partition("=")[0] == "policy" for text in arguments)


def settings_of(arguments: Sequence[str]) -> tuple[PolicySettings, FineTuningSettings]:
    """The policy to start from, and the fine-tuning settings.

    Raises:
        SettingsError: an invalid value.
        HydraException, OmegaConfBaseException: other invalid overrides.
    """
    of_policy = [text for text in arguments if text.partition("=")[0].partition(".")[0] == "policy"]
    policy = check(composed(of_policy)).policy
    plain = OmegaConf.to_container(_config([text for text in arguments if text not in of_policy]), resolve=True)
    assert isinstance(plain, dict)
    return policy, typed(FineTuningSettings, {str(key): value for key, value in plain.items()}, "")


def _config(overrides: Sequence[str], *, hydra: bool = False) -> DictConfig:
    with initialize_config_dir(str(assets_root() / "conf"), version_base="1.3"):
        return compose("finetune", overrides=list(overrides), return_hydra_config=hydra)


def run(arguments: Sequence[str]) -> None:
    """Fine-tune and save the policy. Prints the loss during training, and the next command to type.

    Raises:
        SettingsError: an invalid value, a missing model, a folder that exists.
    """
    if {"-h", "--help"} & set(arguments):
        print(_config((), hydra=True).hydra.help.template)
        return
    if arguments[-2:] == ["--cfg", "job"]:
        print(OmegaConf.to_yaml(_config([text for text in arguments[:-2] if not text.startswith("policy")])))
        return
    refuse_options(arguments)
    policy, settings = settings_of(arguments)
    folder = Path(settings.out).expanduser()
    if folder.exists() and not settings.overwrite:
        raise SettingsError(f"out={settings.out!r}: {folder} exists; set overwrite=true, or choose another out=")
    check_lora(policy.lora)
    _device(settings.device)
    source = policy_folder(policy.path)
    _check_writable(folder, settings.out)
    fine_tune(source, folder, policy, settings)
    print(f"measure it with: python -m rti_exp.roles policy=smollm2_town policy.path={folder}")


def _partial(folder: Path) -> Path:
    """Where the progress and the unfinished model are."""
    return folder.with_name(f"{folder.name}.partial")


def _check_writable(folder: Path, out: str) -> None:
    """Check that the folder can be created, before anything slow."""
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        _partial(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"out={out!r}: cannot create {folder} ({error.strerror})") from error
    with contextlib.suppress(OSError):  # not empty: it holds progress
        _partial(folder).rmdir()


def fine_tune(source: Path, folder: Path, policy: PolicySettings, settings: FineTuningSettings) -> None:
    """Train the model of `source` and save it to `folder`. Progress is kept in `_partial(folder)`.

    Raises:
        SettingsError: that folder holds the progress of other settings.
    """
    import torch

    from rti_exp.models.adapters import add_lora
    from rti_exp.models.load import load
    from rti_exp.pretraining.corpus import draw_document
    from rti_exp.pretraining.progress import ForeignProgress, ProgressLines, TrainingProgress, mean
    from rti_exp.pretraining.supervised_training import train
    from rti_exp.randomness import derive_seed
    from rti_exp.rollout.renderer import renderer_for

    started = time.monotonic()
    silence_libraries()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    given = f"policy.path={policy.path!r}"
    loaded = load(source, policy.dtype, given=given)
    renderer = renderer_for(loaded.tokenizer, settings.chat, setting=given)
    if policy.lora.rank:
        add_lora(loaded.model, policy.lora, seed=derive_seed(settings.seed, "adapters"))
    loaded.model.to(_device(settings.device))  # pyright: ignore[reportArgumentType]
    training = settings.training
    rng = random.Random(derive_seed(settings.seed, "finetune"))
    documents = [draw_document(renderer, settings.prompts, settings.prior, rng) for _ in range(training.documents)]
    length = mean([len(document.token_ids) for document in documents])
    batch = training.documents_per_step
    print(f"{len(documents)} documents of {length:.0f} tokens, {training.steps} steps of {batch}", flush=True)
    recipe = {key: value for key, value in asdict(settings).items() if key not in ("out", "overwrite", "save_every")}
    identity = json.dumps([asdict(policy), recipe], sort_keys=True, default=str)
    progress = TrainingProgress(_partial(folder) / "state.pt", identity=identity, every=settings.save_every)
    lines = ProgressLines("", steps=training.steps, every=10)
    order, mixed = derive_seed(settings.seed, "order"), settings.precision == "bf16-mixed"
    try:
        losses = train(loaded.model, documents, training, order, lines, progress, mixed=mixed)
    except ForeignProgress as error:
        partial = _partial(folder)
        raise SettingsError(f"out={settings.out!r}: {error}; delete {partial}, or choose another out=") from error
    tokens, seconds = round(length * training.steps * batch), time.monotonic() - started
    origin = {
        "from": policy.path,
        "settings": recipe,
        "losses": losses,
        "trained_on_tokens": tokens,
        "seconds": seconds,
    }
    _save(loaded, origin, folder, merge=bool(policy.lora.rank))
    print(f"{folder}: loss {mean(losses[-20:]):.3f} after {len(losses)} steps, {tokens} tokens, {seconds:.0f} seconds")


def _save(loaded: Loaded, origin: dict[str, Any], folder: Path, *, merge: bool) -> None:
    """Save the model, its tokenizer and its origin. Without `overwrite` the folder is complete or absent."""
    from rti_exp.models.adapters import merge_lora

    unfinished = _partial(folder) / "model"
    shutil.rmtree(unfinished, ignore_errors=True)
    model = merge_lora(loaded.model) if merge else loaded.model
    model.save_pretrained(unfinished)
    loaded.tokenizer.save_pretrained(unfinished)
    (unfinished / "warmstart.json").write_text(json.dumps(origin, indent=1, default=str) + "\n", encoding="utf-8")
    if folder.exists():
        shutil.copytree(unfinished, folder, dirs_exist_ok=True)
    else:
        unfinished.rename(folder)
    shutil.rmtree(_partial(folder))


def _device(name: str) -> str:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"device='cuda': torch {torch.__version__} finds no usable GPU here; use device=cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
