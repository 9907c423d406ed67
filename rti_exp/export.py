"""`python -m rti_exp.export RUN out=FOLDER`: a run's trained policy as a plain transformers folder.

    python -m rti_exp.export single/1ff1e526cb9e out=trained      a run: its directory, STUDY/KEY, or the start of a key
    python -m rti_exp.export 1ff1e5 out=adapter adapter=true      the adapters alone, for peft
    python -m rti_exp.export 1ff1e5 out=small dtype=bfloat16

    out=FOLDER         the folder to create; overwrite=true replaces an earlier export
    adapter=true       for a run with policy.lora.rank > 0; by default its adapters are merged into the weights
    dtype=...          float32 | bfloat16 | float16; default: the policy's
    runs_root=FOLDER   where the runs are; default: runs

The folder holds the weights of the newest valid checkpoint, the tokenizer, and export.json with their origin.
`AutoModelForCausalLM.from_pretrained(FOLDER)` and `policy.path=FOLDER` load it. Exit code 0, or 2 for a missing run or
bad arguments.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rti_exp.config.check import check_stored
from rti_exp.config.conversion import refuse_options
from rti_exp.config.paths import policy_folder
from rti_exp.config.policy_settings import DTYPES, PolicySettings, check_lora
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Config
from rti_exp.runs import read_config, read_status
from rti_exp.runs.find import NotFound, find_run
from rti_exp.runs.redaction import redact_output

KEYS = ("out", "adapter", "dtype", "overwrite", "runs_root")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    run: str
    out: Path
    adapter: bool = False
    dtype: str | None = None
    overwrite: bool = False
    runs_root: Path = Path("runs")


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    try:
        settings = parse(arguments)
        export(settings)
    except (SettingsError, NotFound) as error:
        print(f"bad arguments: {str(error).replace('--runs-root', 'runs_root=')}", file=sys.stderr)
        return 2
    print(f"{settings.out}: load it with transformers, or continue training with policy.path={settings.out}")
    return 0


def parse(arguments: Sequence[str]) -> ExportSettings:
    """
    Raises:
        SettingsError: an invalid argument.
    """
    refuse_options(arguments)
    named = dict(text.split("=", 1) for text in arguments if "=" in text)
    runs = [text for text in arguments if "=" not in text]
    unknown = [key for key in named if key not in KEYS]
    if unknown:
        raise SettingsError(f"{unknown[0]}: unknown key; must be one of {', '.join(KEYS)}")
    if len(runs) != 1 or not named.get("out"):
        raise SettingsError("needs one run and out=FOLDER: python -m rti_exp.export RUN out=FOLDER")
    dtype = named.get("dtype")
    if dtype is not None and dtype not in DTYPES:
        raise SettingsError(f"dtype={dtype!r}: must be one of {', '.join(DTYPES)}")
    return ExportSettings(
        run=runs[0],
        out=Path(named["out"]).expanduser(),
        adapter=_flag(named, "adapter"),
        dtype=dtype,
        overwrite=_flag(named, "overwrite"),
        runs_root=Path(named.get("runs_root", "runs")).expanduser(),
    )


def _flag(named: dict[str, str], key: str) -> bool:
    value = named.get(key, "false")
    if value not in ("true", "false"):
        raise SettingsError(f"{key}={value!r}: must be true or false")
    return value == "true"


def export(settings: ExportSettings) -> None:
    """Write the folder.

    Raises:
        NotFound: no run, or several runs, have that name.
        SettingsError: the run has no checkpoint, or no adapters; the folder cannot be written.
    """
    directory = find_run(settings.runs_root, settings.run).directory
    config = _config(directory)
    policy = config.policy
    if not isinstance(policy, PolicySettings):
        raise SettingsError(f"run {directory}: its policy is remote; there are no weights to export")
    if settings.adapter and not policy.lora.rank:
        raise SettingsError(f"adapter=true: run {directory} has no adapters (policy.lora.rank=0)")
    if settings.out.exists() and not settings.overwrite:
        raise SettingsError(f"out={str(settings.out)!r}: exists; set overwrite=true, or choose another out=")
    if settings.out.exists() and not (settings.out / "export.json").is_file():
        raise SettingsError(f"out={str(settings.out)!r}: exists and is not an export; choose another out=")
    check_lora(policy.lora)
    source = policy_folder(policy.path)
    if settings.out.exists() and settings.out.samefile(source):
        raise SettingsError(f"out={str(settings.out)!r}: is the policy that the run started from; choose another out=")
    _write(settings, directory, policy, source, seed=config.run.seed)


def _write(settings: ExportSettings, directory: Path, policy: PolicySettings, source: Path, *, seed: int) -> None:
    import torch

    from rti_exp.experiment.trainer import silence_libraries
    from rti_exp.models.adapters import add_lora, merge_lora, save_adapter
    from rti_exp.models.load import load
    from rti_exp.models.weights import restore_weights

    silence_libraries()
    state = _checkpoint(directory)
    loaded = load(source, policy.dtype, given=f"policy.path={policy.path!r}")
    model = loaded.model
    if policy.lora.rank:
        add_lora(model, policy.lora, seed=seed)
    restore_weights(model, state["model"])
    _create(settings.out)
    if settings.adapter:
        save_adapter(model, policy.lora, settings.out, base=str(source))
    else:
        model = merge_lora(model) if policy.lora.rank else model
        if settings.dtype is not None:
            model = model.to(getattr(torch, settings.dtype))
        model.save_pretrained(settings.out)
    loaded.tokenizer.save_pretrained(settings.out)
    origin = {
        "run": str(directory),
        "run_key": state["run_key"],
        "iteration": int(state["iteration"]),
        "policy": policy.path,
        "adapter": settings.adapter,
    }
    (settings.out / "export.json").write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")


def _create(folder: Path) -> None:
    """Create the folder, without weights and configs of an earlier export: they would be loaded too."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.safetensors", "*.safetensors.index.json", "*config.json"):
            for path in folder.glob(pattern):
                path.unlink()
    except OSError as error:
        raise SettingsError(f"out={str(folder)!r}: cannot be created ({error.strerror})") from error


def _config(directory: Path) -> Config:
    stored = read_config(directory)
    if not stored:
        raise SettingsError(f"run {directory}: it has no config.yaml")
    return check_stored(OmegaConf.create(stored))


def _checkpoint(directory: Path) -> dict[str, Any]:
    from rti_exp.training.checkpoints import CheckpointError, latest_valid_checkpoint

    status = read_status(directory)
    if not status or "run_key" not in status:
        raise SettingsError(f"run {directory}: its status.json has no run_key")
    try:
        state = latest_valid_checkpoint(directory / "checkpoints", str(status["run_key"]))
    except CheckpointError as error:
        raise SettingsError(f"run {directory}: {error}") from error
    if state is None:
        raise SettingsError(f"run {directory}: it has no valid checkpoint in checkpoints/ yet")
    return state


if __name__ == "__main__":
    sys.exit(main())
