"""Ids without a token are neither sampled nor part of a distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rti_exp.engines.base import GenerateRequest, Sampling
from rti_exp.experiment.parts import default_engine
from rti_exp.models.load import load
from rti_exp.training.token_log_probs import TrainedPositions
from tests.support.fakes import tiny_model, tiny_tokenizer


def head_of(model: Any) -> Any:
    return model.get_output_embeddings()


def saved(folder: Path, *, surplus: int) -> int:
    """A model whose surplus ids are likely, and a tokenizer; its number of ids."""
    tokenizer = tiny_tokenizer()
    size = len(tokenizer)
    model = tiny_model(vocab_size=size + surplus)
    with torch.no_grad():
        head_of(model).weight[size:] *= 30
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return size


def test_surplus_rows_are_cut_off(tmp_path: Path) -> None:
    size = saved(tmp_path, surplus=64)
    loaded = load(tmp_path, "float32", given="x")
    assert loaded.model.config.vocab_size == size
    assert head_of(loaded.model).weight.shape[0] == size
    engine = default_engine(loaded.model)
    requests = [
        GenerateRequest(prompt_ids=(1, 5), sampling=Sampling(max_tokens=20, temperature=2.0), seed=seed)
        for seed in range(20)
    ]
    ids = {token for completion in engine.generate(requests) for token in completion.token_ids}
    assert max(ids) < size
    assert not any(loaded.tokenizer.convert_ids_to_tokens(token) is None for token in ids)


def test_a_model_that_fits_is_left_alone(tmp_path: Path) -> None:
    saved(tmp_path, surplus=0)
    model = load(tmp_path, "float32", given="x").model
    assert not head_of(model)._forward_hooks
    assert TrainedPositions(model).packs


def test_gaps_have_no_probability(tmp_path: Path, monkeypatch) -> None:
    size = saved(tmp_path, surplus=0)
    real = tiny_tokenizer().get_vocab()
    gap = next(name for name, token in real.items() if token == 7)
    monkeypatch.setattr(
        "transformers.PreTrainedTokenizerFast.get_vocab",
        lambda self: {name: token for name, token in real.items() if name != gap},
    )
    model = load(tmp_path, "float32", given="x").model
    with torch.no_grad():
        probabilities = model(torch.tensor([[1, 5, 9]])).logits.softmax(dim=-1)
    assert probabilities.shape[-1] == size
    assert probabilities[..., 7].max() == 0.0
    engine = default_engine(model)
    requests = [
        GenerateRequest(prompt_ids=(1, 5), sampling=Sampling(max_tokens=20, temperature=3.0), seed=seed)
        for seed in range(20)
    ]
    assert all(7 not in completion.token_ids for completion in engine.generate(requests))
