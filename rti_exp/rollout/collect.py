"""Rolling out groups: all episodes of all tasks go through the engine together, turn by turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rti_exp.config.settings import RolloutSettings
from rti_exp.engines.base import Engine
from rti_exp.envs.base import Environment, Episode, InfrastructureError
from rti_exp.randomness import derive_seed
from rti_exp.rollout.episode import EpisodeRun, broken_trajectory, environment_call, render_opening
from rti_exp.rollout.render import Renderer
from rti_exp.types import Author, Group, Task, Trajectory


class Collector:
    """Rolls out tasks with the policy's engine.

    Every draw has the seed `derive_seed(seed, iteration, task id, member, purpose, turn)`, so that what one
    episode draws depends neither on the others nor on what was drawn before. An environment that breaks costs
    the one trajectory; an engine that stays down (`EngineUnavailable`) ends the rollout, since it is the policy's.
    `author` is who the engine plays: with a teacher's engine, the teacher.
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

    def collect(
        self,
        tasks: Sequence[Task],
        group_size: int,
        iteration: int,
        *,
        purpose: str = "rollout",
        temperature: float | None = None,
    ) -> list[Group]:
        """`group_size` trajectories of each task, in the order of `tasks`; nothing is intervened on.

        A task that comes twice gets two groups with draws of their own. `temperature` None is the settings' own.
        """
        members: list[list[EpisodeRun | Trajectory]] = []
        seen: Counter[str] = Counter()
        for task in tasks:
            members.append(self._start_group(task, group_size, occurrence=seen[task.id]))
            seen[task.id] += 1
        runs = [member for group in members for member in group if isinstance(member, EpisodeRun)]
        finished = iter(self.run(runs, iteration=iteration, purpose=purpose, temperature=temperature))
        groups = []
        for task, group in zip(tasks, members, strict=True):
            trajectories = tuple(next(finished) if isinstance(member, EpisodeRun) else member for member in group)
            groups.append(Group(task=task, sampled=trajectories, trajectories=trajectories))
        return groups

    def _start_group(self, task: Task, group_size: int, *, occurrence: int) -> list[EpisodeRun | Trajectory]:
        members: list[EpisodeRun | Trajectory] = []
        opening: tuple[Episode, tuple[int, ...]] | None = None
        for member in range(group_size):
            try:
                episode = environment_call(self.environment.start, task)
                if opening is None or environment_call(_openings_differ, episode, opening[0]):
                    opening = (episode, render_opening(episode, self.renderer))
            except InfrastructureError as error:
                members.append(broken_trajectory(task, member, error))
                continue
            members.append(
                EpisodeRun.start(
                    task,
                    member,
                    episode,
                    self.renderer,
                    max_turns=self.environment.max_turns,
                    settings=self.settings,
                    opening_ids=opening[1],
                    seed_parts=(occurrence,) if occurrence else (),
                )
            )
        return members

    def run(
        self, runs: Sequence[EpisodeRun], *, iteration: int, purpose: str, temperature: float | None = None
    ) -> list[Trajectory]:
        """Drives live runs to their end, one batch a turn; trajectories in the order of `runs`."""
        if temperature is None:
            temperature = self.settings.temperature
        while live := [run for run in runs if not run.finished]:
            requests = [
                run.request(self._seed(run, iteration=iteration, purpose=purpose), temperature=temperature)
                for run in live
            ]
            for run, completion in zip(live, self.engine.generate(requests), strict=True):
                run.force(
                    completion.token_ids,
                    completion.log_probs,
                    self.author,
                    importance_weights=completion.importance_weights,
                )
        return [run.finish() for run in runs]

    def _seed(self, run: EpisodeRun, *, iteration: int, purpose: str) -> int:
        return derive_seed(self.seed, iteration, run.task.id, run.member, purpose, run.step, *run.seed_parts)


def _openings_differ(episode: Episode, first: Episode) -> bool:
    return tuple(episode.messages) != tuple(first.messages) or tuple(episode.tools) != tuple(first.tools)
