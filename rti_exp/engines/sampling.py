"""Drawing tokens: inverse CDF, one uniform number a row and token, so that a row's draw is its seed's alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rti_exp.engines.base import Sampling

_WORD = 2**64 - 1


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """[B, count] in [0, 1), fp32: row b is the Philox stream of `seeds[b]`; a longer stream begins as a shorter one.

    Raises:
        ValueError: a seed that is negative or 2^128 and more.
    """
    if seeds and not 0 <= min(seeds) <= max(seeds) < 2**128:
        raise ValueError("seeds must lie between 0 and 2**128 - 1")
    # One generator whose state is set for each row: making one takes four times as long.
    stream, rows = np.random.Philox(key=0), np.empty((len(seeds), count), np.float32)
    generator, start = np.random.Generator(stream), stream.state
    for seed, row in zip(seeds, rows, strict=True):
        start["state"]["key"][:] = seed & _WORD, seed >> 64
        stream.state = start
        generator.random(out=row, dtype=np.float32)
    return torch.from_numpy(rows)


def draw(probabilities_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Token of each row by inverse CDF, [B]; the rows need not be normalised. Never a token of probability 0."""
    cumulated_BV = probabilities_BV.cumsum(dim=1)
    total_B = cumulated_BV[:, -1]
    # Rounding may lift u * total to total, past the last token.
    below_B = torch.nextafter(total_B, torch.zeros_like(total_B))
    target_B1 = torch.minimum(uniforms_B * total_B, below_B)[:, None]
    # The clamp matters for rows of NaN only; their log-prob tells.
    return torch.searchsorted(cumulated_BV, target_B1, right=True)[:, 0].clamp_(max=probabilities_BV.shape[1] - 1)


def nucleus(probabilities_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """The probabilities with 0 outside each row's nucleus: the fewest likeliest tokens that sum to at least top_p.

    Source: Holtzman et al. 2020, arXiv 1904.09751.
    """
    sorted_BV, order_BV = probabilities_BV.sort(dim=1, descending=True, stable=True)
    before_BV = sorted_BV.cumsum(dim=1) - sorted_BV
    kept_BV = sorted_BV.masked_fill(before_BV >= top_p_B[:, None], 0.0)
    kept_BV[:, 0] = sorted_BV[:, 0]
    return torch.zeros_like(probabilities_BV).scatter(1, order_BV, kept_BV)


class Sampler:
    """Draws for a batch of rows, each with its own temperature, top_p and seed.

    Temperature 0 takes the likeliest token (the first of equal ones). Log-probs are in fp32, of the distribution that
    sampled; at temperature 0, of the raw logits.
    """

    def __init__(self, samplings: Sequence[Sampling], seeds: Sequence[int], device: torch.device) -> None:
        temperatures = [sampling.temperature for sampling in samplings]
        steps = max(sampling.max_tokens for sampling in samplings)
        self._all_greedy = all(value == 0 for value in temperatures)
        self._any_greedy = any(value == 0 for value in temperatures)
        self._any_scaled = any(value not in (0, 1) for value in temperatures)
        self._scaled_B = torch.tensor([value not in (0, 1) for value in temperatures], device=device)
        self._any_nucleus = any(sampling.top_p < 1 for sampling in samplings)
        self._greedy_B = torch.tensor([value == 0 for value in temperatures], device=device)
        self._temperature_B = torch.tensor([value or 1.0 for value in temperatures], device=device)
        self._top_p_B = torch.tensor([sampling.top_p for sampling in samplings], device=device)
        self._uniforms_TB = uniforms(seeds, 1 if self._all_greedy else steps).T.contiguous().to(device)

    def __call__(self, logits_BV: Tensor, step: int, rows_B: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and log-probs, [B] each, of step `step`; `rows_B` says which of the batch's rows these are."""
        logits_BV = logits_BV.float()
        log_probs_BV = self._log_probs(logits_BV, rows_B)
        if self._all_greedy:
            ids_B = logits_BV.argmax(dim=1)
            return ids_B, _at(log_probs_BV, ids_B)
        probabilities_BV = log_probs_BV.exp()
        if self._any_nucleus:
            probabilities_BV = nucleus(probabilities_BV, self._top_p_B[rows_B])
        ids_B = draw(probabilities_BV, self._uniforms_TB[step][rows_B])
        if self._any_greedy:
            ids_B = torch.where(self._greedy_B[rows_B], logits_BV.argmax(dim=1), ids_B)
        log_probs_B = _at(log_probs_BV, ids_B)
        if self._any_nucleus:
            kept_B = (self._top_p_B[rows_B] < 1) & ~self._greedy_B[rows_B]
            log_probs_B -= torch.where(kept_B, probabilities_BV.sum(dim=1).log(), 0.0)
        return ids_B, log_probs_B

    def _log_probs(self, logits_BV: Tensor, rows_B: Tensor) -> Tensor:
        log_probs_BV = logits_BV.log_softmax(dim=1)
        if not self._any_scaled:
            return log_probs_BV
        below_best_BV = logits_BV - logits_BV.amax(dim=1, keepdim=True)  # no overflow at small temperatures
        scaled_BV = (below_best_BV / self._temperature_B[rows_B, None]).log_softmax(dim=1)
        return torch.where(self._scaled_B[rows_B, None], scaled_BV, log_probs_BV)


def _at(values_BV: Tensor, ids_B: Tensor) -> Tensor:
    return values_BV.gather(1, ids_B[:, None])[:, 0]
