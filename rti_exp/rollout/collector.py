"""Rolling out groups: the episodes of all tasks go through the engine together, turn by turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rti_exp.config.settings import RolloutSettings
from rti_exp.engines.base import Engine
from rti_exp.envs.base import Environment, InfrastructureError
from rti_exp.randomness import derive_seed
from rti_exp.rollout.environment_calls import broken_trajectory, environment_call
from rti_exp.rollout.live_episode import EpisodeRules, LiveEpisode, read_opening
from rti_exp.rollout.renderer import Renderer
from rti_exp.rollout.segments import Opening
from rti_exp.types import Author, Group, Task, Trajectory


class Collector:
    """Rolls out tasks with one engine.

    Every draw has the seed `derive_seed(seed, iteration, task id, member, purpose, turn)`. So an episode's draws depend
    neither on the other episodes nor on earlier draws. An environment that fails costs one trajectory. An engine that
    stays down (`EngineUnavailable`) ends the rollout. `author` is whose turns the engine samples.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        engine: Engine,
        renderer: Renderer,
        settings: RolloutSettings,
        seed: int,
        author: Author = Author.POLICY,
    ) -> None:
        self.environment = environment
        self.engine = engine
        self.renderer = renderer
        self.settings = settings
        self.seed = seed
        self.author = author

    @property
    def rules(self) -> EpisodeRules:
        return EpisodeRules(renderer=self.renderer, settings=self.settings, max_turns=self.environment.max_turns)

    def collect(
        self,
        tasks: Sequence[Task],
        group_size: int,
        iteration: int,
        *,
        purpose: str = "rollout",
        temperature: float | None = None,
    ) -> list[Group]:
        """`group_size` trajectories of each task, in the order of `tasks`, before any intervention.

        A task that occurs twice gets two groups with different draws. `temperature` None means the settings'.
        """
        members: list[list[LiveEpisode | Trajectory]] = []
        occurrences: Counter[str] = Counter()
        for task in tasks:
            members.append(self._start_group(task, group_size, occurrence=occurrences[task.id]))
            occurrences[task.id] += 1
        live = [member for group in members for member in group if isinstance(member, LiveEpisode)]
        finished = iter(self.run(live, iteration=iteration, purpose=purpose, temperature=temperature))
        groups = []
        for task, group in zip(tasks, members, strict=True):
            trajectories = tuple(next(finished) if isinstance(member, LiveEpisode) else member for member in group)
            groups.append(Group(task=task, sampled=trajectories, trajectories=trajectories))
        return groups

    def _start_group(self, task: Task, group_size: int, *, occurrence: int) -> list[LiveEpisode | Trajectory]:
        members: list[LiveEpisode | Trajectory] = []
        rendered: tuple[Opening, tuple[int, ...]] | None = None
        for member in range(group_size):
            try:
                episode = environment_call(self.environment.start, task)
                opening = read_opening(episode)
                if rendered is None or opening != rendered[0]:
                    rendered = opening, self.renderer.opening(opening.messages, opening.tools)
                live = LiveEpisode(
                    task,
                    member,
                    episode,
                    self.rules,
                    opening_ids=rendered[1],
                    seed_parts=(occurrence,) if occurrence else (),
                )
            except InfrastructureError as error:
                members.append(broken_trajectory(task, member, error))
            else:
                members.append(live)
        return members

    def run(
        self, episodes: Sequence[LiveEpisode], *, iteration: int, purpose: str, temperature: float | None = None
    ) -> list[Trajectory]:
        """Plays live episodes to their end, one batch per turn; trajectories in the order of `episodes`."""
        if temperature is None:
            temperature = self.settings.temperature
        while live := [episode for episode in episodes if not episode.finished]:
            requests = [
                episode.request(self._seed(episode, iteration=iteration, purpose=purpose), temperature=temperature)
                for episode in live
            ]
            for episode, completion in zip(live, self.engine.generate(requests), strict=True):
                episode.take_turn(
                    completion.token_ids,
                    completion.log_probs,
                    self.author,
                    importance_weights=completion.importance_weights,
                )
        return [episode.finish() for episode in episodes]

    def _seed(self, episode: LiveEpisode, *, iteration: int, purpose: str) -> int:
        return derive_seed(
            self.seed, iteration, episode.task.id, episode.member, purpose, episode.step, *episode.seed_parts
        )
