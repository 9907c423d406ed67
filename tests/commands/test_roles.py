"""`python -m rti_exp.roles` on the embedded policy: its measurements are better than chance."""

import pytest

from rti_exp import roles


@pytest.fixture(autouse=True)
def few_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "PLAYS", 6)
    monkeypatch.setenv("COLUMNS", "120")


def rows(text: str) -> dict[tuple[str, str], float]:
    """(quantity, case) -> value, shares as percentages."""
    values = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        if len(cells) == 4 and cells[3].isdigit():
            values[cells[0], cells[1]] = float(cells[2].rstrip("%"))
    return values


def test_the_embedded_policy_plays_its_roles_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert roles.main(["seed=3"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["validator right", "harmful"] >= 90
    assert table["validator right", "harmless"] >= 90
    assert table["verifier passes", "leak: clean"] >= 90
    assert table["verifier passes", "leak: leaky"] <= 20
    assert table["corrector writes, goal unseen", "leaky"] > table["corrector writes, goal unseen", "clean"]
    assert 0 < table["takes the right step", "nav_hard"] < 1 < 10 < table["takes the right step", "nav_easy"] < 100
    shares = [value for (quantity, _), value in table.items() if quantity == "corrector writes"]
    assert sum(shares) == pytest.approx(100, abs=0.5)


def test_the_teachers_corrections_lie_further_from_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert roles.main(["corrector=teacher"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["corrector writes", "formal"] >= 60
    assert table["perplexity, median", "formal"] > 5


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("policy.path=nowhere", "policy.path='nowhere'"),
        ("gate.delta=-1", "gate.delta=-1"),
        ("gate=5", "did you mean gate.delta=5"),
        *((f"plays={value}", f"plays={value!r}: must be an integer >= 1") for value in ("0", "-1", "many", "")),
    ],
)
def test_a_bad_argument_is_exit_code_2(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert roles.main([argument]) == 2
    assert message in capsys.readouterr().err
