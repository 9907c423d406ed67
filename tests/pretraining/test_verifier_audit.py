from __future__ import annotations

from dataclasses import replace

import pytest

from rti_exp import roles
from rti_exp.pretraining.corrections import leak_possible
from rti_exp.pretraining.verifier_audit import Case, ConfusionMatrix, confusion_matrix, draw_cases, rule_verdicts


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return draw_cases(0, 2)


def test_cases_come_in_pairs_where_a_leak_is_possible(cases: list[Case]) -> None:
    assert len(cases) >= 8
    assert [case.planted for case in cases] == [True, False] * (len(cases) // 2)
    for leak, clean in zip(cases[::2], cases[1::2], strict=True):
        assert leak.failure is clean.failure
        assert leak_possible(leak.failure)
        assert str(leak.failure.task.payload["goal"]) in leak.text
    assert draw_cases(0, 2) == cases
    assert draw_cases(1, 2) != cases


def test_the_rule_rejects_leaks_unless_the_request_shows_the_goal(cases: list[Case]) -> None:
    assert rule_verdicts(cases) == [not case.planted for case in cases]
    leak = cases[0]
    first, *rest = leak.failure.opening
    shown = replace(first, content=f"{first.content} {leak.failure.task.payload['goal']}")
    failure = replace(leak.failure, opening=(shown, *rest))
    assert rule_verdicts([Case(failure=failure, text=leak.text, planted=True)]) == [True]


@pytest.mark.parametrize(("passed", "count"), [([False, True, True, False], 1), ([], 0)])
def test_a_confusion_matrix_counts_verdicts(cases: list[Case], passed: list[bool], count: int) -> None:
    assert confusion_matrix("judge", cases[: len(passed)], passed) == ConfusionMatrix(
        judge="judge", leaks_rejected=count, leaks_passed=count, clean_rejected=count, clean_passed=count
    )


def test_the_command_prints_both_judges(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(roles, "PLAYS", 3)
    monkeypatch.setenv("COLUMNS", "120")
    assert roles.main(["verifier=policy_and_rule"]) == 0
    lines = [line.strip("│").split("│") for line in capsys.readouterr().out.splitlines()]
    table = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines if len(cells) == 6}
    assert list(table) == ["policy, leak check", "policy, all checks", "rule", "policy and rule"]
    pairs = int(table["rule"][0])
    assert table["rule"] == [str(pairs), "0", "0", str(pairs), "100.0%"]
    for counts in table.values():
        assert sum(map(int, counts[:4])) == 2 * pairs
        assert float(counts[4].rstrip("%")) >= 75
    assert int(table["policy and rule"][0]) == pairs
