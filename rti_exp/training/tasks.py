"""The tasks of each iteration: a pure function of (seed, iteration), so that a resumed run draws the same tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from pytorch_lightning import LightningDataModule

from rti_exp.config.settings import RunSettings, SettingsError
from rti_exp.randomness import derive_seed
from rti_exp.types import Task


class TaskStream:
    """Shuffled epochs of tasks, split into iterations of `tasks_per_iteration`.

    Each task occurs once in an epoch. An iteration may begin in one epoch and end in the next; it never holds a task
    twice. The order of an epoch is derived from (seed, epoch, task id), not from the order of `tasks`.

    Raises:
        SettingsError: fewer tasks than an iteration takes.
    """

    def __init__(self, tasks: Sequence[Task], *, tasks_per_iteration: int, seed: int) -> None:
        if tasks_per_iteration > len(tasks):
            raise SettingsError(
                f"tasks_per_iteration={tasks_per_iteration}: must be at most {len(tasks)}, the number of training tasks"
            )
        self._tasks = list(tasks)
        self._per_iteration = tasks_per_iteration
        self._seed = seed
        self._epochs: list[list[Task]] = []

    def iteration(self, iteration: int) -> list[Task]:
        """The tasks of an iteration, counted from 1."""
        first = (iteration - 1) * self._per_iteration
        return [self._at(position) for position in range(first, first + self._per_iteration)]

    def fresh(self, iteration: int) -> list[Task]:
        """All other tasks, in the order in which they replace groups without signal.

        The order depends on (seed, iteration, task id) only, not on earlier replacements.
        """
        first = {task.id for task in self.iteration(iteration)}
        rest = [task for task in self._tasks if task.id not in first]
        return sorted(rest, key=lambda task: derive_seed(self._seed, "refill", iteration, task.id))

    def _at(self, position: int) -> Task:
        epoch, place = divmod(position, len(self._tasks))
        while len(self._epochs) <= epoch:
            self._epochs.append(self._next_epoch())
        return self._epochs[epoch][place]

    def _next_epoch(self) -> list[Task]:
        epoch = len(self._epochs)
        order = sorted(self._tasks, key=lambda task: derive_seed(self._seed, "tasks", epoch, task.id))
        begun = epoch * len(self._tasks) % self._per_iteration
        if not begun:
            return order
        # An iteration that spans two epochs must not repeat a task of its first part.
        taken = {task.id for task in self._epochs[-1][-begun:]}
        head = [task for task in order if task.id not in taken][: self._per_iteration - begun]
        chosen = {task.id for task in head}
        return head + [task for task in order if task.id not in chosen]


class IterationTasks:
    """This rank's tasks of one iteration; `fresh()` gives every rank the same tasks for replacing groups.

    Neither a list nor a dataclass: Lightning's precision plugins walk those and fail on frozen tasks.
    """

    __slots__ = ("fresh", "iteration", "tasks")

    def __init__(self, iteration: int, tasks: Sequence[Task], fresh: Callable[[], Sequence[Task]] = tuple) -> None:
        self.iteration = iteration
        self.tasks = tuple(tasks)
        self.fresh = fresh

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]


class TaskLoader:
    """Yields the tasks of iterations `done + 1` to `last`, this rank's share of each."""

    def __init__(self, stream: TaskStream, *, done: int, last: int, rank: int, world_size: int) -> None:
        self.stream = stream
        self.done = done
        self.last = last
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        return max(0, self.last - self.done)

    def __iter__(self) -> Iterator[IterationTasks]:
        for iteration in range(self.done + 1, self.last + 1):
            share = self.stream.iteration(iteration)[self.rank :: self.world_size]
            yield IterationTasks(iteration, share, partial(self.stream.fresh, iteration))


class TaskDataModule(LightningDataModule):
    """The tasks of `max_iterations` iterations, sharded over the trainer's ranks.

    Lightning does not shard custom loaders, so each rank takes every world_size-th task of the iteration.
    `tasks_per_iteration` counts the tasks of all ranks: the number of devices does not change the training data.

    Args:
        tasks: The training tasks.
        run: seed, max_iterations, tasks_per_iteration.

    Raises:
        SettingsError: fewer tasks than `tasks_per_iteration`, or (from `train_dataloader`) more ranks than tasks.
    """

    def __init__(self, *, tasks: Sequence[Task], run: RunSettings) -> None:
        super().__init__()
        self.run = run
        self.stream = TaskStream(tasks, tasks_per_iteration=run.tasks_per_iteration, seed=run.seed)
        self._done = 0

    def train_dataloader(self) -> TaskLoader:
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        if world_size > self.run.tasks_per_iteration:
            raise SettingsError(
                f"tasks_per_iteration={self.run.tasks_per_iteration}: must be at least {world_size}, "
                "the number of processes, so that each has a task"
            )
        return TaskLoader(self.stream, done=self._done, last=self.run.max_iterations, rank=rank, world_size=world_size)

    def state_dict(self) -> dict[str, int]:
        """{"iteration": iterations done}, from the module in training if there is one."""
        module = self.trainer.lightning_module if self.trainer else None
        return {"iteration": getattr(module, "iteration", self._done)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """The next loader starts with iteration `state_dict["iteration"]` + 1."""
        self._done = state_dict["iteration"]
