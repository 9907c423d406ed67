"""Seeded choices."""

from collections import Counter

import pytest

from rti_exp.intervention.case import Case
from rti_exp.intervention.selection import select
from tests.support.attempts import case_of
from tests.support.fakes import GuessWorld, wrong_texts
from tests.support.interventions import episode

WORLD = GuessWorld()
TASK = WORLD.tasks("train")[0]


def cases(members, *, seed: int = 0, iteration: int = 0) -> list[Case]:
    return [
        case_of(episode(WORLD, TASK, member, wrong_texts(TASK)), TASK, seed=seed, iteration=iteration)
        for member in members
    ]


def members(selected: list[Case]) -> list[int]:
    return [case.trajectory.member for case in selected]


@pytest.mark.parametrize(
    ("valid", "max_per_group", "group_size", "count"),
    [
        (8, None, 8, 4),
        (7, None, 7, 3),
        (8, 2, 8, 2),
        (8, 8, 8, 8),
        (8, 9, 8, 8),
        (8, 0, 8, 0),
        (5, None, 8, 4),
        (4, None, 8, 3),
        (2, None, 8, 1),
        (1, None, 8, 0),
        (1, 1, 8, 1),
    ],
)
def test_how_many(valid, max_per_group, group_size, count):
    chosen = members(select(cases(range(valid)), max_per_group, group_size=group_size))
    assert len(chosen) == count
    assert chosen == sorted(set(chosen))


def test_selection_is_seeded_and_moves_with_seed_and_iteration():
    found = {
        (seed, iteration): tuple(members(select(cases(range(8), seed=seed, iteration=iteration), 2, group_size=8)))
        for seed in range(2)
        for iteration in range(3)
    }
    assert found == {
        (seed, iteration): tuple(members(select(cases(range(8), seed=seed, iteration=iteration), 2, group_size=8)))
        for seed, iteration in found
    }
    assert len(set(found.values())) > 3


def test_every_member_is_selected_sometimes():
    counts = Counter(
        member
        for iteration in range(200)
        for member in members(select(cases(range(4), iteration=iteration), 1, group_size=4))
    )
    assert set(counts) == {0, 1, 2, 3}
    assert min(counts.values()) > 30
