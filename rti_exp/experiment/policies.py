"""Who rolls out: a model with its tokenizer and engine, and the collectors made of it.

torch is imported by what is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rti_exp.config.algorithm_settings import LuffySettings
from rti_exp.config.check import Config
from rti_exp.envs.base import Environment

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from rti_exp.engines.base import Engine
    from rti_exp.rollout.chat_render import ChatRenderer
    from rti_exp.rollout.collect import Collector
    from rti_exp.rollout.render import TokenRenderer
    from rti_exp.rollout.teacher import TeacherRollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """A model with its tokenizer, the engine that samples it, and the renderer of its chat format."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    engine: Engine
    renderer: TokenRenderer | ChatRenderer


def collector(config: Config, world: Environment, policy: Player) -> Collector:
    from rti_exp.rollout.collect import Collector

    return Collector(
        environment=world,
        engine=policy.engine,
        renderer=policy.renderer,
        settings=config.rollout,
        seed=config.run.seed,
    )


def teacher_rollouts(config: Config, rollouts: Collector, taught_by: Player | None) -> TeacherRollouts | None:
    """None unless the algorithm's groups have members of a teacher."""
    options = config.algorithm.options
    if taught_by is None or not isinstance(options, LuffySettings):
        return None
    from rti_exp.rollout.collect import Collector
    from rti_exp.rollout.teacher import TeacherRollouts
    from rti_exp.types import Author

    own = Collector(
        environment=rollouts.environment,
        engine=taught_by.engine,
        renderer=rollouts.renderer,
        settings=config.rollout,
        seed=config.run.seed,
        author=Author.TEACHER,
    )
    return TeacherRollouts(
        teacher=own, policy=rollouts, members=options.n_prefix, prefix_fraction=options.prefix_fraction
    )


def same_tokenizer(first: Player, second: Player) -> bool:
    return first.tokenizer.backend_tokenizer.to_str() == second.tokenizer.backend_tokenizer.to_str()


class Judges:
    """The models that play validator and verifier: the policy, or another one, which is loaded once for both.

    Args:
        load: makes the player of a path; the second argument is the key that names it.
    """

    def __init__(self, config: Config, policy: Player, load: Callable[[str, str], Player]) -> None:
        self._config, self._policy, self._load = config, policy, load
        self._others: dict[str, Player] = {}

    def voice(self, role: str) -> dict[str, Any]:
        """Who speaks, as keyword arguments of the role's class."""
        path = getattr(getattr(self._config, role).options, "policy", None)
        if not isinstance(path, str):
            return {"engine": self._policy.engine, "renderer": self._policy.renderer}
        if path not in self._others:
            self._others[path] = self._load(path, f"{role}.policy")
        other = self._others[path]
        same = same_tokenizer(self._policy, other)
        renderer = self._policy.renderer if same else other.renderer
        return {"engine": other.engine, "renderer": renderer, "same_tokenizer": same}
