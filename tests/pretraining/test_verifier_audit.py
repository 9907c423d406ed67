from __future__ import annotations

from dataclasses import replace

import pytest

from rti_exp import roles
from rti_exp.pretraining.documents import leak_possible
from rti_exp.pretraining.verifier_audit import Case, Matrix, draw_cases, matrix, rule_verdicts


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return draw_cases(0, 2)


def test_cases_come_in_pairs_where_a_leak_is_possible(cases: list[Case]) -> None:
    assert len(cases) >= 8
    assert [case.planted for case in cases] == [True, False] * (len(cases) // 2)
    for leak, clean in zip(cases[::2], cases[1::2], strict=True):
        assert leak.played is clean.played
        step = leak.played.first_harmful
        assert step is not None
        assert leak_possible(leak.played, step)
        assert str(leak.played.task.payload["goal"]) in leak.text
    assert draw_cases(0, 2) == cases
    assert draw_cases(1, 2) != cases


def test_the_rule_knows_planted_leaks_from_what_was_said(cases: list[Case]) -> None:
    assert rule_verdicts(cases) == [not case.planted for case in cases]
    leak = cases[0]
    goal = str(leak.played.task.payload["goal"])
    opening = leak.played.opening
    told = replace(leak.played, opening=(replace(opening[0], content=f"{opening[0].content} {goal}"), *opening[1:]))
    assert rule_verdicts([Case(played=told, text=leak.text, planted=True)]) == [True]


def test_counts(cases: list[Case]) -> None:
    found = matrix("judge", cases[:4], [False, True, True, False])
    assert found == Matrix(judge="judge", leaks_rejected=1, leaks_passed=1, clean_rejected=1, clean_passed=1)
    assert matrix("judge", [], []) == Matrix(
        judge="judge", leaks_rejected=0, leaks_passed=0, clean_rejected=0, clean_passed=0
    )


def test_the_command_prints_both_judges(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(roles, "PLAYS", 3)
    monkeypatch.setenv("COLUMNS", "120")
    assert roles.main(["verifier=policy_and_rule"]) == 0
    lines = [line.strip("│").split("│") for line in capsys.readouterr().out.splitlines()]
    found = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines if len(cells) == 6}
    assert list(found) == ["policy, leak check", "policy, all checks", "rule", "policy and rule"]
    pairs = int(found["rule"][0])
    assert found["rule"] == [str(pairs), "0", "0", str(pairs), "100.0%"]
    for counts in found.values():
        assert sum(map(int, counts[:4])) == 2 * pairs
        assert float(counts[4].rstrip("%")) >= 75
    assert int(found["policy and rule"][0]) == pairs
