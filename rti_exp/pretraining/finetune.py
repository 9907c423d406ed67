"""`python -m rti_exp.warmstart policy=...`: fine-tune a language model on the town, into a transformers folder.

`policy` and its keys are those of rti_exp.train; all other keys are conf/finetune.yaml's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.check import PromptSettings, check
from rti_exp.config.compose import composed
from rti_exp.config.conversion import refuse_options, typed
from rti_exp.config.paths import assets_root, policy_folder
from rti_exp.config.policy_settings import PolicySettings, check_lora
from rti_exp.config.settings import SettingsError, require_at_least
from rti_exp.experiment.trainer import silence_libraries
from rti_exp.pretraining.prior import Prior, TrainingSettings

if TYPE_CHECKING:
    from rti_exp.models.load import Loaded
    from rti_exp.pretraining.keeping import Keeper

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("32-true", "bf16-mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneSettings:
    seed: int = 0
    out: str = "policies/smollm2"
    overwrite: bool = False
    device: str = "auto"
    precision: str = "32-true"
    """One of `PRECISIONS`."""
    threads: int = 1
    save_every: int = 25
    """Steps after which what is done is kept, in `out`.partial; the same command goes on from there."""
    chat: ChatSettings = field(default_factory=ChatSettings)
    prior: Prior = field(default_factory=Prior)
    prompts: PromptSettings = field(default_factory=PromptSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise SettingsError(f"device={self.device!r}: must be one of {', '.join(DEVICES)}")
        if self.precision not in PRECISIONS:
            raise SettingsError(f"precision={self.precision!r}: must be one of {', '.join(PRECISIONS)}")
        require_at_least(self, threads=1, save_every=1, seed=0)


def settings_of(arguments: Sequence[str]) -> tuple[PolicySettings, FinetuneSettings]:
    """The policy to start from, and how to fine-tune it.

    Raises:
        SettingsError: a value without sense.
        HydraException, OmegaConfBaseException: other bad overrides.
    """
    about_policy = [text for text in arguments if text.partition("=")[0].partition(".")[0] == "policy"]
    rest = [text for text in arguments if text not in about_policy]
    policy = check(composed(about_policy)).policy
    plain = OmegaConf.to_container(_config(rest), resolve=True)
    assert isinstance(plain, dict)
    return policy, typed(FinetuneSettings, {str(key): value for key, value in plain.items()}, "")


def _config(overrides: Sequence[str], *, hydra: bool = False) -> DictConfig:
    with initialize_config_dir(str(assets_root() / "conf"), version_base="1.3"):
        return compose("finetune", overrides=list(overrides), return_hydra_config=hydra)


def run(arguments: Sequence[str]) -> None:
    """Fine-tune and save; prints the loss as it goes, and what to type next.

    Raises:
        SettingsError: a value without sense, a model that is not there, a folder that is.
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
        raise SettingsError(f"out={settings.out!r}: {folder} is there already; set overwrite=true, or another out=")
    check_lora(policy.lora)
    _device(settings.device)
    source = policy_folder(policy.path)
    _check_folder(folder, settings.out)
    started = time.monotonic()
    losses, tokens = finetune(source, folder, policy, settings)
    seconds = time.monotonic() - started
    print(f"{folder}: loss {_mean(losses[-20:]):.3f} after {len(losses)} steps, {tokens} tokens, {seconds:.0f} seconds")
    print(f"measure it with: python -m rti_exp.roles policy=smollm2_town policy.path={folder}")


def _check_folder(folder: Path, given: str) -> None:
    """That it can be made, before anything slow."""
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        partial.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"out={given!r}: cannot make {folder} ({error.strerror})") from error
    with contextlib.suppress(OSError):  # one that holds something stays
        partial.rmdir()


def recipe(settings: FinetuneSettings) -> dict[str, Any]:
    """What makes the policy what it is."""
    return {key: value for key, value in asdict(settings).items() if key not in ("out", "overwrite", "save_every")}


def finetune(source: Path, folder: Path, policy: PolicySettings, settings: FinetuneSettings) -> tuple[list[float], int]:
    """The model of `source`, trained and saved to `folder`; (loss of each step in nats a trained token, tokens fed).

    What is done meanwhile is in `folder`.partial, and taken up from there.

    Raises:
        SettingsError: that folder is of other settings.
    """
    import torch

    from rti_exp.models.adapters import add_lora
    from rti_exp.models.load import load
    from rti_exp.pretraining.documents import draw_document
    from rti_exp.pretraining.keeping import Keeper, OtherRun
    from rti_exp.pretraining.training import train
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
    rng = random.Random(derive_seed(settings.seed, "finetune"))
    documents = [
        draw_document(renderer, settings.prompts, settings.prior, rng) for _ in range(settings.training.documents)
    ]
    lengths = [len(document.token_ids) for document in documents]
    steps, per_step = settings.training.steps, settings.training.documents_per_step
    print(f"{len(documents)} documents of {_mean(lengths):.0f} tokens, {steps} steps of {per_step}", flush=True)
    partial = folder.with_name(f"{folder.name}.partial")
    identity = json.dumps([asdict(policy), recipe(settings)], sort_keys=True, default=str)
    keeper = Keeper(partial / "state.pt", identity=identity, every=settings.save_every)
    shown = _Progress(keeper, steps)
    try:
        order = derive_seed(settings.seed, "order")
        mixed = settings.precision == "bf16-mixed"
        train(loaded.model, documents, settings.training, order, shown, keeper, mixed=mixed)
    except OtherRun as error:
        raise SettingsError(f"out={settings.out!r}: {error}; delete {partial}, or take another out=") from error
    tokens = round(_mean(lengths) * steps * per_step)
    made = {
        "from": policy.path,
        "settings": recipe(settings),
        "losses": keeper.losses,
        "trained_on_tokens": tokens,
        "seconds": time.monotonic() - started,
    }
    _save(loaded, policy, made, partial / "made", folder)
    shutil.rmtree(partial)
    return keeper.losses, tokens


class _Progress:
    """A line every ten steps, and for the first one of this process and the last."""

    def __init__(self, keeper: Keeper, steps: int) -> None:
        self._keeper, self._steps = keeper, steps
        self._started, self._first = time.monotonic(), 0

    def __call__(self, step: int, loss: float) -> None:
        self._first = self._first or step
        if step % 10 and step not in (self._first, self._steps):
            return
        left = (time.monotonic() - self._started) / (step - self._first + 1) * (self._steps - step)
        line = f"step {step} of {self._steps}, loss {_mean(self._keeper.losses[-10:]):.3f}"
        print(f"{line}, {left / 60:.0f} minutes left", flush=True)


def _save(loaded: Loaded, policy: PolicySettings, made: Mapping[str, Any], half: Path, folder: Path) -> None:
    """The trained model, its tokenizer and how it was made; `folder` is there as a whole or not at all."""
    from rti_exp.models.adapters import merge_lora

    shutil.rmtree(half, ignore_errors=True)
    model = merge_lora(loaded.model) if policy.lora.rank else loaded.model
    model.save_pretrained(half)
    loaded.tokenizer.save_pretrained(half)
    (half / "warmstart.json").write_text(json.dumps(made, indent=1, default=str) + "\n", encoding="utf-8")
    if folder.exists():
        shutil.copytree(half, folder, dirs_exist_ok=True)
    else:
        half.rename(folder)


def _device(name: str) -> str:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"device='cuda': torch {torch.__version__} finds no usable GPU here; take device=cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def chosen(arguments: Sequence[str]) -> bool:
    """Whether the arguments of rti_exp.warmstart are for fine-tuning a policy rather than for making one."""
    return any(text.partition("=")[0] == "policy" for text in arguments)
