"""pass@k and pass^k from n samples with c successes."""

from __future__ import annotations

from math import comb


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k samples succeeds: 1 - C(n - c, k) / C(n, k).

    Args:
        samples: n, the valid samples of a task (without infrastructure failures).
        successes: c, 0 <= c <= n.
        k: 1 <= k <= n; for k > n there is no unbiased estimate.

    Raises:
        ValueError: a value is out of range.

    Source: Chen et al. 2021, arXiv 2107.03374.
    """
    _check(samples, successes, k)
    return 1 - comb(samples - successes, k) / comb(samples, k)


def pass_hat_k(samples: int, successes: int, k: int) -> float:
    """Unbiased estimate of the probability that all of k samples succeed, pass^k: C(c, k) / C(n, k).

    Arguments and errors are those of `pass_at_k`.

    Source: Yao et al. 2024, arXiv 2406.12045.
    """
    _check(samples, successes, k)
    return comb(successes, k) / comb(samples, k)


def _check(samples: int, successes: int, k: int) -> None:
    if not 0 <= successes <= samples:
        raise ValueError(f"{successes} successes of {samples} samples: must be in [0, {samples}]")
    if not 1 <= k <= samples:
        raise ValueError(f"k={k}: must be in [1, {samples}], the number of samples")
