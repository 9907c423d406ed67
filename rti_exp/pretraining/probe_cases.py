"""The town's cases for the fixed probe."""

from __future__ import annotations

import random

from rti_exp.config.group_settings import ProbeSettings
from rti_exp.config.settings import SettingsError
from rti_exp.envs.base import Environment
from rti_exp.envs.town import Town
from rti_exp.pretraining.behaviour import Play, plan_of
from rti_exp.pretraining.documents import action_ids, correction, failed_play, history_ids
from rti_exp.pretraining.prior import Prior
from rti_exp.randomness import derive_seed
from rti_exp.rollout.renderer import Renderer
from rti_exp.training.probe import ProbeCase


class TownProbe:
    """Held-out tasks that the pretraining corpus' agent failed at their critical step, each with the right action
    there: `settings.cases` for each family."""

    def __init__(self, settings: ProbeSettings) -> None:
        self.settings = settings

    def cases(self, world: Environment, renderer: Renderer) -> list[ProbeCase]:
        if not isinstance(world, Town):
            raise SettingsError(f"probe: its cases are the town's, not {type(world).__name__}'s; must be none")
        rng = random.Random(derive_seed(self.settings.seed, "fixed probe"))
        families = sorted({task.family for task in world.tasks("heldout")})
        plays: dict[str, list[Play]] = {family: [] for family in families}
        while any(len(played) < self.settings.cases for played in plays.values()):
            played = failed_play(rng, Prior(), late=0.0, split="heldout")
            kept = plays.get(played.task.family)
            if kept is not None and len(kept) < self.settings.cases and _failed_at_the_critical_step(played):
                kept.append(played)
        return [self._case(played, renderer, rng) for family in families for played in plays[family]]

    @staticmethod
    def _case(played: Play, renderer: Renderer, rng: random.Random) -> ProbeCase:
        step = played.first_harmful
        assert step is not None
        return ProbeCase(
            family=played.task.family,
            prompt_ids=history_ids(renderer, played, step),
            action_ids=action_ids(renderer, correction(played, "clean", rng)),
        )


def _failed_at_the_critical_step(played: Play) -> bool:
    step = played.first_harmful
    return step is not None and played.steps[step].place == plan_of(played.task).critical_step
