"""The benchmark as an `Environment`: one category, its 200 tasks, and which of them are held out."""

from __future__ import annotations

from rti_exp.config.fields import Count
from rti_exp.envs.bfcl.data import CATEGORIES, entries
from rti_exp.envs.bfcl.episode import BfclEpisode
from rti_exp.envs.required_packages import require
from rti_exp.types import Task

# bfcl-eval's requirements serve hosted models and pin old versions; they are not needed here.
INSTALL = "pip install 'rti-exp[bfcl]' && pip install --no-deps 'bfcl-eval>=2026.3.23'"


class Bfcl:
    """One multi-turn category of BFCL v4.

    The benchmark has no training split. Task number i is held out where i + 1 is a multiple of `heldout_every`; the
    categories share their scenarios by number, so that training on one never sees another's held-out scenario.

    Args:
        category: one of `CATEGORIES`.
        heldout_every: 4 holds out 50 of 200; 1 holds out all and leaves none to train on: the benchmark as published.
        max_steps: assistant turns with tool calls for one user turn; one more fails the task, as in the benchmark.
        max_turns: assistant turns an episode may take.

    Raises:
        SettingsError: `bfcl-eval` is not installed.
        ValueError: an invalid value.
    """

    def __init__(self, *, category: str, heldout_every: Count, max_steps: Count, max_turns: Count) -> None:
        if category not in CATEGORIES:
            raise ValueError(f"env.category={category!r}: must be one of {', '.join(CATEGORIES)}")
        require(("bfcl_eval", "mpmath"), purpose=f"env=bfcl_{category}", install=INSTALL)
        self.max_turns = max_turns
        self._category = category
        self._heldout_every = heldout_every
        self._max_steps = max_steps

    def tasks(self, split: str) -> list[Task]:
        if split not in ("train", "heldout"):
            raise ValueError(f'no split {split!r} of BFCL: use "train" or "heldout"')
        return [
            Task(
                id=entry["id"],
                family=f"bfcl_{self._category}",
                split=split,
                payload={"entry": entry, "reference": reference},
            )
            for number, (entry, reference) in enumerate(entries(self._category))
            if ((number + 1) % self._heldout_every == 0) == (split == "heldout")
        ]

    def start(self, task: Task) -> BfclEpisode:
        return BfclEpisode(task, max_steps=self._max_steps)
