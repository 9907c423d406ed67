import math

import pytest
import torch
from scipy import stats

from rti_exp.engines.base import Sampling
from rti_exp.engines.sampling import Sampler, draw, nucleus, uniforms

CPU = torch.device("cpu")


def test_uniforms_of_a_row_are_its_seeds_alone():
    longer = uniforms([7, 3], 5)
    assert torch.equal(uniforms([3], 5)[0], longer[1])
    assert torch.equal(uniforms([7], 2)[0], longer[0, :2])
    assert not torch.equal(longer[0], longer[1])


def test_uniforms_are_pinned():
    """A change here changes every run: numpy's Philox stream of seed 0, as fp32."""
    assert uniforms([0], 3)[0].tolist() == pytest.approx([0.03474188, 0.01154673, 0.61195022], abs=1e-7)
    assert uniforms([2**63 - 1], 1).shape == (1, 1)


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 1), (0.24, 1), (0.26, 2), (0.49, 2), (0.51, 4), (0.9999999, 4), (1.0, 4)]
)
def test_draw_inverts_the_distribution(uniform, token):
    probabilities = torch.tensor([[0.0, 0.25, 0.25, 0.0, 0.5, 0.0]])
    assert draw(probabilities, torch.tensor([uniform])).tolist() == [token]


def test_draw_at_a_boundary_never_takes_a_token_of_probability_zero():
    assert draw(torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([0.5])).tolist() == [2]
    assert draw(torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([0.0])).tolist() == [2]


def test_draw_needs_no_normalisation():
    assert draw(torch.tensor([[1.0, 1.0, 2.0]]), torch.tensor([0.3])).tolist() == [1]


def test_nucleus_keeps_the_fewest_likeliest_tokens():
    probabilities = torch.tensor([[0.1, 0.4, 0.3, 0.2]] * 4)
    kept = nucleus(probabilities, torch.tensor([0.3, 0.6, 1.0, 1e-6])) > 0
    assert kept.tolist() == [
        [False, True, False, False],
        [False, True, True, False],
        [True, True, True, True],
        [False, True, False, False],
    ]


def test_mixed_rows_follow_their_own_sampling():
    logits = torch.tensor([[0.0, 1.0, 3.0]]).repeat(3, 1)
    samplings = [
        Sampling(temperature=0.0, max_tokens=2),
        Sampling(temperature=1e-30, max_tokens=2),
        Sampling(temperature=1.0, top_p=0.5, max_tokens=2),
    ]
    sampler = Sampler(samplings, [1, 2, 3], CPU)
    ids, log_probs = sampler(logits, 0, torch.arange(3))
    assert ids.tolist() == [2, 2, 2]
    expected = 3 - math.log(1 + math.e + math.exp(3))
    # Greedy: at temperature 1. The other two can draw nothing else.
    assert log_probs.tolist() == pytest.approx([expected, 0.0, 0.0], abs=1e-6)


def test_rows_keep_their_draws_when_the_batch_is_closed_up():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    sampler = Sampler([Sampling(max_tokens=3)] * 4, [10, 11, 12, 13], CPU)
    whole, _ = sampler(logits, 1, torch.arange(4))
    rows = torch.tensor([3, 1])
    part, _ = sampler(logits[rows], 1, rows)
    assert part.tolist() == whole[rows].tolist()


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.5, 1.0), (1.0, 0.8)])
def test_frequencies_match_the_distribution(temperature, top_p):
    count = 20_000
    logits = torch.tensor([1.0, 0.5, -1.0, 2.0, 0.0, -3.0])
    sampler = Sampler([Sampling(temperature=temperature, top_p=top_p, max_tokens=1)] * count, range(count), CPU)
    ids, _ = sampler(logits.repeat(count, 1), 0, torch.arange(count))
    expected = (logits.double() / temperature).softmax(0)
    if top_p < 1:
        # By hand: sorted 0.518, 0.190, 0.116, ...; the first three are the fewest that reach 0.8.
        expected = torch.where(torch.tensor([True, True, False, True, False, False]), expected, 0.0)
        assert expected.sum() > top_p > expected.sum() - expected[1]
        expected = expected / expected.sum()
    observed = torch.bincount(ids, minlength=6).double()
    assert observed[expected == 0].sum() == 0
    possible = expected > 0
    p_value = stats.chisquare(observed[possible].numpy(), (count * expected[possible]).numpy()).pvalue
    assert p_value > 0.001
