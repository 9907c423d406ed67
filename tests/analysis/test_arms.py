from __future__ import annotations

import math

import pytest

from rti_exp.analysis import arms
from rti_exp.runs.differences import flatten


def corrector(kind: str, tokens: int) -> dict:
    return {"corrector": {"kind": kind, "tokens": tokens}}


@pytest.mark.parametrize(
    ("configs", "overrides", "labels"),
    [
        pytest.param(
            [
                {"seed": seed, "runs_root": f"/{seed}", "logger": {"name": seed}, "gate": {"delta": delta}, "size": 8}
                for seed, delta in [(0, 5), (1, 5.0), (0, math.inf), (1, "inf")]
            ],
            None,
            ["gate.delta=5", "gate.delta=5", "gate.delta=inf", "gate.delta=inf"],
            id="equal values and ignored keys",
        ),
        pytest.param([{"seed": 0, "a": 1}, {"seed": 1, "a": 1}], None, ["all runs"] * 2, id="no difference"),
        pytest.param([{"a": 1}, {"a": 1, "b": 0}], None, ["b=default", "b=0"], id="an absent key is a value"),
        pytest.param(
            [corrector("Policy", 32), corrector("Teacher", 64)],
            [[], ["corrector=teacher"]],
            ["corrector=default", "corrector=teacher"],
            id="a chosen group replaces the keys that it determines",
        ),
        pytest.param(
            [corrector("p", 32), corrector("t", 32), corrector("t", 64)],
            [["corrector=self"], ["corrector=teacher"], ["corrector=teacher", "corrector.tokens=64"]],
            [
                "corrector=self, corrector.tokens=32",
                "corrector=teacher, corrector.tokens=32",
                "corrector=teacher, corrector.tokens=64",
            ],
            id="keys that a choice does not determine are named too",
        ),
        pytest.param(
            [{"gate": {"delta": 0}, "group_size": 8}, {"gate": {"delta": 5}, "group_size": 16}],
            [["experiment=a"], ["experiment=b"]],
            ["experiment=a", "experiment=b"],
            id="an experiment file replaces all keys that it sets",
        ),
        pytest.param(
            [{"a": 0, "b": 0}, {"a": 1, "b": 1}],
            [["b=0", "a=0"], ["b=1", "a=1"]],
            ["b=0, a=0", "b=1, a=1"],
            id="keys in the order of the overrides",
        ),
        pytest.param(
            [{"gate": {"delta": delta}} for delta in (0, 5)],
            [["gate.delta=0", "note=a"], ["gate.delta=5", "note=b"]],
            ["gate.delta=0", "gate.delta=5"],
            id="a choice that determines no key is not named",
        ),
        pytest.param(
            [{"trainer": {"devices": count}} for count in (1, 2)], None, ["all runs"] * 2, id="devices do not matter"
        ),
        pytest.param(
            [{"trainer": {"precision": name}} for name in ("32-true", "bf16-mixed")],
            None,
            ["trainer.precision=32-true", "trainer.precision=bf16-mixed"],
            id="precision matters",
        ),
    ],
)
def test_labels_name_the_keys_that_differ(
    configs: list[dict], overrides: list[list[str]] | None, labels: list[str]
) -> None:
    values = arms.swept_values([flatten(config) for config in configs], overrides or [[] for _ in configs])
    assert [arms.label(run) for run in values] == labels


def test_flatten_keeps_lists_and_empty_mappings() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1, {"e": 2}]}) == {"a.b": 1, "a.c": {}, "d": [1, {"e": 2}]}


def test_values_sort_by_size_and_plain_choices_first() -> None:
    values = ["teacher", math.inf, 20, None, "self", 0, 5, "none", 0.5, True]
    ordered = sorted(values, key=arms.sort_key)
    assert ordered == ["none", None, 0, 0.5, True, 5, 20, math.inf, "self", "teacher"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.0, "5"),
        (0.2, "0.2"),
        (math.inf, "inf"),
        ("inf", "inf"),
        (None, "null"),
        (True, "true"),
        (["gold", 1], "[gold,1]"),
    ],
)
def test_values_are_shown_as_typed(value: object, text: str) -> None:
    assert arms.show(value) == text


def test_long_values_have_short_distinct_names() -> None:
    names = [arms.show("x" * 100 + tail) for tail in ("", "a", "\n")]
    assert len(set(names)) == 3
    assert all(len(name) == 40 for name in names)


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
def test_plain_grpo_is_recognised(config: dict, plain: bool) -> None:
    assert arms.is_plain_grpo(config) is plain
