"""Training log-probs are those of the distribution that samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rti_exp.models.head as head_module
from rti_exp.engines.base import ScoreRequest
from rti_exp.experiment.parts import default_engine
from rti_exp.objective.losses import policy_loss
from rti_exp.training.batch import micro_batches
from rti_exp.training.token_log_probs import TrainedPositions
from rti_exp.types import Author, Sample
from tests.support.fakes import tiny_gpt2, tiny_model

PROMPT = (3, 9, 4)


def pushed(model: Any, *, sampled_at: float, recorded_at: float, trained_at: float) -> float:
    """Largest gradient of the expected loss of the next token, if the reward does not depend on that token."""
    with torch.no_grad():
        likelihood_V = (model(torch.tensor([PROMPT])).logits[0, -1] / sampled_at).softmax(dim=0)
    tokens = range(len(likelihood_V))
    requests = [ScoreRequest(prompt_ids=PROMPT, token_ids=(token,), temperature=recorded_at) for token in tokens]
    samples = [
        Sample(
            token_ids=(*PROMPT, token),
            authors=(Author.ENVIRONMENT,) * len(PROMPT) + (Author.POLICY,),
            loss_mask=(False,) * len(PROMPT) + (True,),
            behaviour_log_probs=(0.0,) * len(PROMPT) + log_probs,
            weights=(1.0,) * (len(PROMPT) + 1),
            advantage=likelihood_V[token].item(),  # how often the token is drawn, times an advantage of 1
            task_id="t",
            member=token,
        )
        for token, log_probs in enumerate(default_engine(model).score(requests))
    ]
    [batch] = micro_batches(samples, max_tokens=10**6, total_trained_tokens=len(samples))
    loss, _ = policy_loss(
        TrainedPositions(model, trained_at)(batch).log_probs_BT,
        batch.behaviour_log_probs_BT,
        batch.advantages_BT,
        batch.weights_BT,
        batch.loss_mask_BT,
        clip_low=0.2,
        clip_high=0.28,
        total_tokens=1,
    )
    loss.backward()
    return max(float(weight.grad.abs().max()) for weight in model.parameters() if weight.grad is not None)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("make", [tiny_model, tiny_gpt2], ids=["compiled", "plain"])
def test_the_expected_gradient_of_a_token_that_cannot_matter_is_zero(make: Any, temperature: float) -> None:
    model = make(sharpen=8.0)
    assert pushed(model, sampled_at=temperature, recorded_at=temperature, trained_at=temperature) < 1e-5


def test_the_same_with_a_head_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "CHUNKED_FROM", 16)
    monkeypatch.setattr(head_module, "CHUNK_VALUES", 800)
    assert pushed(tiny_gpt2(sharpen=8.0), sampled_at=0.6, recorded_at=0.6, trained_at=0.6) < 1e-5


@pytest.mark.parametrize(("recorded_at", "trained_at"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.6)])
def test_another_distribution_than_the_sampling_one_would_push_it(recorded_at: float, trained_at: float) -> None:
    model = tiny_model(sharpen=8.0)
    assert pushed(model, sampled_at=0.6, recorded_at=recorded_at, trained_at=trained_at) > 1e-3
