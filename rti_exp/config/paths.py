"""Where things are: the configs (in a checkout or in an installed wheel), embedded policies, and runs.

This module imports no torch.
"""

from __future__ import annotations

import re
from pathlib import Path

from rti_exp.config.model_files import HUB, PACKAGED, from_hub, packaged
from rti_exp.config.settings import SettingsError

PACKAGE = Path(__file__).resolve().parents[1]
BUILTIN = "builtin:"
PARTS = {
    "weights": ("*.safetensors", "pytorch_model*.bin"),
    "files of a tokenizer": ("tokenizer.json", "tokenizer.model", "vocab.*"),
}
"""What a transformers folder holds besides config.json: any file of each."""


def assets_root() -> Path:
    """The folder that holds `conf/` and `sweeps/`.

    Raises:
        FileNotFoundError: neither a wheel's assets nor a checkout's folders are there.
    """
    for root in (PACKAGE / "_assets", PACKAGE.parent):
        if (root / "conf" / "train.yaml").is_file():
            return root
    raise FileNotFoundError(f"conf/train.yaml is neither in {PACKAGE / '_assets'} nor in {PACKAGE.parent}")


def builtin_policies() -> list[str]:
    """Names that may follow `builtin:`."""
    return sorted(path.parent.name for path in (PACKAGE / "policies").glob("*/config.json"))


WARMED = "policies/smollm2"
"""Where a warm start of SmolLM2 puts it; the path of policy=smollm2_town."""


def policy_folder(path: str, key: str = "policy.path") -> Path:
    """The transformers folder that a policy path means (`rti_exp.config.model_files` lists its forms).

    Raises:
        SettingsError: no such policy; the message names `key`.
    """
    if path.startswith(PACKAGED):
        folder, wanted = packaged(path.removeprefix(PACKAGED), key), "whole"
    elif path.startswith(HUB):
        folder, wanted = from_hub(path.removeprefix(HUB), key), f"a model with config.json; {path} has none"
    elif path.startswith(BUILTIN):
        folder = PACKAGE / "policies" / path.removeprefix(BUILTIN)
        wanted = f"one of {[BUILTIN + name for name in builtin_policies()]}, or a folder with a transformers model"
    else:
        folder = Path(path).expanduser()
        wanted = "a folder with a transformers model (config.json, weights, tokenizer)"
        if path == WARMED and not folder.exists():
            wanted += ", which python -m rti_exp.warmstart policy=smollm2 makes there"
        elif re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not folder.exists():
            wanted += f", or {HUB}{path} for a model of the Hugging Face hub"
    if not (folder / "config.json").is_file():
        missing = str(folder / "config.json")
        missing = missing if missing.isprintable() else repr(missing)
        raise SettingsError(f"{key}={path!r}: there is no {missing}; must be {wanted}")
    for what, patterns in PARTS.items():
        if not any(next(folder.glob(pattern), None) for pattern in patterns):
            raise SettingsError(f"{key}={path!r}: there are no {what} in {folder} ({', '.join(patterns)})")
    return folder
