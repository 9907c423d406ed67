"""The seam to faster code for some models, which the last line names. Without it, transformers computes everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel


class RolloutDecoder(Protocol):
    """What the local engine needs: forward passes over a cache of slots, in inference mode."""

    def refresh(self) -> None:
        """Call it when the model's parameters may have been replaced by other tensors."""
        ...

    def new_cache(self) -> Any:
        """A `rti_exp.engines.key_value_cache.KeyValueCache` for the other methods."""
        ...

    def next_logits(self, cache: Any, tokens_B: Tensor, slots_B: Tensor, positions_B: Tensor) -> Tensor:
        """[B, V] after these tokens, each in another slot."""
        ...

    def decode(
        self,
        cache: Any,
        slots_M: np.ndarray,
        tokens_M: np.ndarray,
        positions_M: np.ndarray,
        *,
        temperatures_M: np.ndarray,
        uniforms_TM: np.ndarray,
        limits_M: np.ndarray,
        stops_MV: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids and log-probs [T, M], of the distribution that sampled, and numbers of tokens [M]."""
        ...

    def log_probs(
        self,
        cache: Any,
        tokens_N: np.ndarray,
        slots_N: np.ndarray,
        positions_N: np.ndarray,
        *,
        rows_M: np.ndarray,
        targets: Sequence[int],
        temperatures: Sequence[float],
        max_tokens: int,
    ) -> list[float]:
        """Stores keys and values of all tokens; the log-prob of each target after its token."""
        ...


class PackedForward(Protocol):
    """What the learner needs: a forward pass without padding, with gradient."""

    def log_probs(
        self,
        rows: Sequence[Sequence[int]],
        rows_M: Tensor,
        columns_M: Tensor,
        targets_M: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Log-prob of each target after its place in `rows`, and the entropy there, without gradient; [M] each."""
        ...


class FastPath(Protocol):
    """Two decoders that compute a model's own function faster, with other rounding."""

    @property
    def rollout(self) -> RolloutDecoder: ...
    @property
    def update(self) -> PackedForward: ...

    def applies(self) -> bool:
        """Whether they do now: not under autocast, in another precision, or with modules or hooks added since."""
        ...


def fast_path(model: PreTrainedModel) -> FastPath | None:
    """The fast path for `model`, in eval mode, if there is one and it agrees with the model's own forward pass."""
    return None


# Replaces the function above. Delete this line and the folder, and everything works without compiled code.
from rti_exp.compiled_qwen3 import fast_path  # noqa: E402, F401, F811
