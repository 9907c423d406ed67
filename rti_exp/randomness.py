"""Randomness is derived, never carried: a stable hash of what is drawn seeds each draw.

A resumed run therefore draws what the unbroken run would have drawn, and the roles' draws do not move
the policy's.
"""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) from `parts`, e.g. (seed, iteration, task id, member, "rollout", turn).

    Stable over processes, machines and Python versions; (1, "2") and ("1", 2) differ.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest(), "big") >> 1
