"""The fixed probe: the perplexity of the same clean corrections to the policy as it learns.

Held-out failures are drawn once, with a seed that is not the run's; the right action replaces the first harmful step.
The probe tracks that action's perplexity under the rollout prompt. If it falls, the policy internalises corrections
that it was never shown. (The perplexity of the corrections made in training also falls because they change.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytorch_lightning import Callback, LightningModule, Trainer

from rti_exp.engines.base import ScoreRequest
from rti_exp.envs.base import Environment
from rti_exp.objective.perplexity import log_perplexity
from rti_exp.rollout.renderer import Renderer
from rti_exp.training.learner import RTIModule
from rti_exp.training.metrics import mean
from rti_exp.training.run_directory import RunDirectory, learner


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCase:
    """A correction's ids, and the rollout prompt of the step that it corrects."""

    family: str
    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]


class ProbeSource(Protocol):
    """The probe cases of an environment; `rti_exp.pretraining.probe_cases.TownProbe`."""

    def cases(self, world: Environment, renderer: Renderer) -> list[ProbeCase]:
        """
        Raises:
            SettingsError: the cases belong to another environment.
        """
        ...


class ProbeCallback(Callback):
    """Scores the cases before the first iteration, every `every`, and after the last.

    Tokens of the probe do not count as the run's compute.

    Args:
        run: None on ranks that write nothing; they score nothing either.
        cases: At least one.
        every: Iterations between two probes; 0: only before the first and after the last iteration.
    """

    def __init__(self, *, run: RunDirectory | None, cases: Sequence[ProbeCase], every: int) -> None:
        self.run = run
        self.probe_cases = list(cases)
        self.every = every

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = learner(pl_module)
        if module.iteration == 0:
            self._probe(trainer, module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module = learner(pl_module)
        if module.finished or (self.every and module.iteration % self.every == 0):
            self._probe(trainer, module)

    def _probe(self, trainer: Trainer, module: RTIModule) -> None:
        if self.run is None:
            return
        module.eval()
        requests = [ScoreRequest(prompt_ids=case.prompt_ids, token_ids=case.action_ids) for case in self.probe_cases]
        with trainer.precision_plugin.forward_context():  # the trained policy, in the trainer's precision
            scores = module.engine.score(requests)
        # The probe's cache entries would change the shapes of the next batches, and so the last digits.
        module.engine.sync(module.policy_version)
        self.run.append_metrics(probe_row(module.iteration, self.probe_cases, scores))


def probe_row(iteration: int, cases: Sequence[ProbeCase], scores: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The probe row of metrics.jsonl: geometric means of perplexity, over all cases and by family.

    Args:
        scores: Log-probs of each case's action, under the rollout prompt at temperature 1.
    """
    by_family: dict[str, list[float]] = {}
    for case, log_probs in zip(cases, scores, strict=True):
        by_family.setdefault(case.family, []).append(log_perplexity(log_probs))
    all_values = [value for values in by_family.values() for value in values]
    return {
        "kind": "probe",
        "iteration": iteration,
        "perplexity": _exp(mean(all_values)),
        **{f"perplexity/{family}": _exp(mean(values)) for family, values in by_family.items()},
    }


def _exp(log_value: float | None) -> float | None:
    if log_value is None:
        return None
    try:
        return math.exp(log_value)
    except OverflowError:
        return math.inf
