"""Loading a model with its tokenizer. Code that a model brings along is never run, and no network is used here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from rti_exp.config.settings import SettingsError
from rti_exp.models.vocabulary import remove_ids_without_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


def load(folder: Path, dtype: str, *, given: str) -> Loaded:
    """The model, in eval mode, and its tokenizer. `given` ("policy.path='...'") begins the messages.

    Raises:
        SettingsError: the files are no causal language model that can be loaded, or its tokenizer is no fast one.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False
        )
    except (ValueError, OSError, KeyError, RuntimeError, ImportError) as error:
        raise SettingsError(f"{given}: cannot be loaded as a causal language model: {_first_line(error)}") from error
    tokenizer = load_tokenizer(folder, given=given)
    remove_ids_without_token(model, tokenizer)
    return Loaded(model=model.eval(), tokenizer=tokenizer)


def load_tokenizer(folder: Path, *, given: str) -> PreTrainedTokenizerFast:
    """
    Raises:
        SettingsError: there is none, or it is no fast one.
    """
    # tokenizer.json as it is; a tokenizer class of transformers may rebuild it otherwise.
    kind = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise SettingsError(f"{given}: its tokenizer cannot be loaded: {_first_line(error)}") from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise SettingsError(f"{given}: has no fast tokenizer (tokenizer.json), which the rendering needs")
    return tokenizer


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
