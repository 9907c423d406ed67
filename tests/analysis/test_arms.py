from __future__ import annotations

import math

import pytest

from rti_exp.analysis import arms
from rti_exp.runs.differences import flatten


def labels(configs: list[dict], overrides: list[list[str]] | None = None) -> list[str]:
    flats = [flatten(config) for config in configs]
    return [arms.label(values) for values in arms.swept_values(flats, overrides or [[] for _ in configs])]


def test_flatten_keeps_lists_and_empty_mappings():
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1, {"e": 2}]}) == {"a.b": 1, "a.c": {}, "d": [1, {"e": 2}]}


def test_only_differing_keys_that_matter_make_an_arm():
    configs = [
        {"seed": seed, "runs_root": f"/{seed}", "logger": {"name": seed}, "gate": {"delta": delta}, "group_size": 8}
        for seed, delta in [(0, 5), (1, 5.0), (0, math.inf), (1, "inf")]
    ]
    assert labels(configs) == ["gate.delta=5", "gate.delta=5", "gate.delta=inf", "gate.delta=inf"]


def test_runs_that_do_not_differ_are_one_arm():
    assert labels([{"seed": 0, "a": 1}, {"seed": 1, "a": 1}]) == ["all runs", "all runs"]


def test_a_key_that_a_run_lacks_counts_as_a_value():
    assert labels([{"a": 1}, {"a": 1, "b": 0}]) == ["b=default", "b=0"]


def test_a_chosen_group_stands_for_what_it_changes():
    configs = [
        {"corrector": {"_target_": "Policy", "tokens": 32}},
        {"corrector": {"_target_": "Teacher", "model": "big", "tokens": 64}},
    ]
    assert labels(configs, [[], ["corrector=teacher"]]) == ["corrector=default", "corrector=teacher"]


def test_what_a_choice_does_not_tell_is_named_too():
    configs = [{"corrector": {"kind": kind, "tokens": tokens}} for kind, tokens in [("p", 32), ("t", 32), ("t", 64)]]
    overrides = [["corrector=self"], ["corrector=teacher"], ["corrector=teacher", "corrector.tokens=64"]]
    assert labels(configs, overrides) == [
        "corrector=self, corrector.tokens=32",
        "corrector=teacher, corrector.tokens=32",
        "corrector=teacher, corrector.tokens=64",
    ]


def test_an_experiment_file_stands_for_all_that_it_sets():
    configs = [{"gate": {"delta": 0}, "group_size": 8}, {"gate": {"delta": 5}, "group_size": 16}]
    assert labels(configs, [["experiment=a"], ["experiment=b"]]) == ["experiment=a", "experiment=b"]


def test_keys_come_in_the_order_they_were_typed():
    configs = [{"a": 0, "b": 0}, {"a": 1, "b": 1}]
    assert labels(configs, [["b=0", "a=0"], ["b=1", "a=1"]]) == ["b=0, a=0", "b=1, a=1"]


def test_values_sort_by_size_and_plain_choices_first():
    values = ["teacher", math.inf, 20, None, "self", 0, 5, "none", 0.5, True]
    ordered = sorted(values, key=arms.sort_key)
    assert ordered == ["none", None, 0, 0.5, True, 5, 20, math.inf, "self", "teacher"]


@pytest.mark.parametrize(
    ("value", "shown"), [(5.0, "5"), (0.2, "0.2"), (math.inf, "inf"), ("inf", "inf"), (None, "null"), (True, "true")]
)
def test_values_are_shown_as_typed(value: object, shown: str):
    assert arms.show(value) == shown


@pytest.mark.parametrize(
    ("config", "plain"),
    [
        ({"gate.delta": 0}, True),
        ({"gate.delta": 5}, False),
        ({"gate.delta": 5, "corrector._target_": None}, True),
        ({"gate.delta": "inf"}, False),
        ({}, False),
        ({"corrector._target_": None, "algorithm._target_": "rti_exp.objective.grpo.GRPO"}, True),
        ({"corrector._target_": None, "algorithm._target_": "rti_exp.objective.luffy.LUFFY"}, False),
        ({"corrector._target_": None, "algorithm.dynamic_sampling": 2}, False),
        ({"corrector._target_": None, "budget.tokens": 1e6}, False),
        ({"corrector._target_": None, "budget.tokens": "inf"}, True),
    ],
)
def test_plain_grpo_is_recognised(config: dict, plain: bool):
    assert arms.is_plain_grpo(config) is plain


def test_what_makes_no_other_run_makes_no_other_arm():
    from rti_exp.config import check

    assert set(arms.VOLATILE) == {*check.VOLATILE, "seed", "hydra"}
    assert labels([{"trainer": {"devices": count}} for count in (1, 2)]) == ["all runs"] * 2
    assert labels([{"trainer": {"precision": name}} for name in ("32-true", "bf16-mixed")])[0] == (
        "trainer.precision=32-true"
    )


def test_long_or_many_lined_values_are_named_short_and_apart():
    names = [arms.show("x" * 100 + tail) for tail in ("", "a", "\n")]
    assert len(set(names)) == 3
    assert all(len(name) == 40 for name in names)
    assert arms.show(["gold", 1]) == "[gold,1]"


def test_a_choice_that_tells_nothing_is_not_named():
    configs = [{"gate": {"delta": delta}} for delta in (0, 5)]
    assert labels(configs, [["gate.delta=0", "note=a"], ["gate.delta=5", "note=b"]]) == ["gate.delta=0", "gate.delta=5"]
