from __future__ import annotations

from collections import Counter

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import RunSettings, SettingsError
from rti_exp.training.tasks import TaskDataModule, TaskLoader, TaskStream
from rti_exp.types import Task


def make_tasks(count: int) -> list[Task]:
    return [Task(id=f"task_{number}", family="family", split="train") for number in range(count)]


def ids(tasks: object) -> list[str]:
    return [task.id for task in tasks]  # pyright: ignore[reportGeneralTypeIssues]


def stream(count: int, per_iteration: int, seed: int = 0) -> TaskStream:
    return TaskStream(make_tasks(count), tasks_per_iteration=per_iteration, seed=seed)


def test_every_task_once_an_epoch_where_epochs_end_with_an_iteration() -> None:
    tasks = stream(12, 4)
    epochs = [[id for step in range(3) for id in ids(tasks.iteration(1 + 3 * epoch + step))] for epoch in range(4)]
    assert all(sorted(epoch) == sorted(ids(make_tasks(12))) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize(("count", "per_iteration"), [(5, 4), (5, 5), (7, 3), (10, 4), (4, 3), (6, 1), (9, 8)])
def test_no_task_twice_in_an_iteration_and_each_once_an_epoch(count: int, per_iteration: int) -> None:
    tasks = stream(count, per_iteration)
    drawn: list[str] = []
    for iteration in range(1, 10 * count + 1):
        now = ids(tasks.iteration(iteration))
        assert len(set(now)) == per_iteration
        drawn += now
    for epoch in range(len(drawn) // count):
        assert set(Counter(drawn[epoch * count : (epoch + 1) * count]).values()) == {1}


def test_random_access_equals_reading_in_order() -> None:
    in_order = [ids(stream(7, 3).iteration(iteration)) for iteration in range(1, 21)]
    tasks = stream(7, 3)
    assert ids(tasks.iteration(20)) == in_order[19]
    assert ids(tasks.iteration(2)) == in_order[1]


def test_order_depends_on_the_seed_and_not_on_the_order_of_the_tasks() -> None:
    first = ids(stream(12, 12, seed=0).iteration(1))
    backward = TaskStream(make_tasks(12)[::-1], tasks_per_iteration=12, seed=0)
    assert ids(backward.iteration(1)) == first
    assert ids(stream(12, 12, seed=1).iteration(1)) != first


def test_order_is_the_same_on_every_machine() -> None:
    assert ids(stream(4, 4).iteration(1)) == ["task_2", "task_0", "task_3", "task_1"]


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"tasks_per_iteration=5: must be at most 4"):
        stream(4, 5)


def test_loader_yields_what_is_left() -> None:
    tasks = stream(5, 2)
    loader = TaskLoader(tasks, done=3, last=6, rank=0, world_size=1)
    assert len(loader) == 3
    assert [(one.iteration, ids(one)) for one in loader] == [(i, ids(tasks.iteration(i))) for i in (4, 5, 6)]
    assert len(TaskLoader(tasks, done=6, last=6, rank=0, world_size=1)) == 0


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_share_an_iteration(world_size: int) -> None:
    tasks = stream(9, 4)
    shards = [list(TaskLoader(tasks, done=0, last=5, rank=rank, world_size=world_size)) for rank in range(world_size)]
    for number in range(5):
        together = [id for shard in shards for id in ids(shard[number])]
        assert sorted(together) == sorted(ids(tasks.iteration(number + 1)))


def test_data_module_goes_on_after_its_state() -> None:
    run = default_settings(RunSettings, seed=2, max_iterations=6, tasks_per_iteration=2)
    unbroken = [ids(one) for one in TaskDataModule(tasks=make_tasks(5), run=run).train_dataloader()]
    resumed = TaskDataModule(tasks=make_tasks(5), run=run)
    assert resumed.state_dict() == {"iteration": 0}
    resumed.load_state_dict({"iteration": 4})
    assert resumed.state_dict() == {"iteration": 4}
    assert [ids(one) for one in resumed.train_dataloader()] == unbroken[4:]
    assert len(unbroken) == 6


def test_more_processes_than_tasks_are_refused() -> None:
    class FourProcesses:
        global_rank, world_size = 0, 4

    module = TaskDataModule(tasks=make_tasks(5), run=default_settings(RunSettings, tasks_per_iteration=3))
    module.trainer = FourProcesses()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(SettingsError, match=r"tasks_per_iteration=3: must be at least 4"):
        module.train_dataloader()
