"""The town's cases for the fixed probe."""

from __future__ import annotations

import random

from rti_exp.config.job_settings import ProbeSettings
from rti_exp.config.settings import SettingsError
from rti_exp.envs.base import Environment
from rti_exp.envs.town import Town
from rti_exp.pretraining.corpus import action_ids, rollout_prompt
from rti_exp.pretraining.corrections import correction
from rti_exp.pretraining.demonstrations import Demonstration, failed_demonstration, plan_of
from rti_exp.pretraining.recipe import default_prior
from rti_exp.randomness import derive_seed
from rti_exp.rollout.renderer import Renderer
from rti_exp.training.probe import ProbeCase


class TownProbe:
    """Held-out tasks that the scripted agent failed at their critical step, each with the right action there.

    There are `settings.cases` for each family.
    """

    def __init__(self, settings: ProbeSettings) -> None:
        self.settings = settings

    def cases(self, world: Environment, renderer: Renderer) -> list[ProbeCase]:
        """
        Raises:
            SettingsError: the environment is not the town.
        """
        if not isinstance(world, Town):
            name = type(world).__name__
            raise SettingsError(f"probe: its cases belong to the town, not to {name}; must be none with this env")
        rng = random.Random(derive_seed(self.settings.seed, "fixed probe"))
        families = sorted({task.family for task in world.tasks("heldout")})
        failures: dict[str, list[Demonstration]] = {family: [] for family in families}
        while any(len(failed) < self.settings.cases for failed in failures.values()):
            demonstration = failed_demonstration(rng, default_prior(), late=0.0, split="heldout")
            kept = failures.get(demonstration.task.family)
            if kept is not None and len(kept) < self.settings.cases and _failed_at_the_critical_step(demonstration):
                kept.append(demonstration)
        return [
            ProbeCase(
                family=family,
                prompt_ids=rollout_prompt(renderer, demonstration, demonstration.first_harmful),
                action_ids=action_ids(renderer, correction(demonstration, "clean", rng)),
            )
            for family in families
            for demonstration in failures[family]
        ]


def _failed_at_the_critical_step(demonstration: Demonstration) -> bool:
    step = demonstration.steps[demonstration.first_harmful]
    return step.place == plan_of(demonstration.task).critical_step
