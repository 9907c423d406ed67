"""Playing an episode by hand: shorthand calls, JSON, texts, the end."""

import io

import pytest
from rich.console import Console

from rti_exp import play
from rti_exp.envs.town.world import TownEpisode, draw_task
from rti_exp.pretraining.demonstrations import plan_of

TASK = draw_task("nav_hard", "heldout", 3, 0)


def played(lines: list[str]) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    remaining = iter(lines)

    def ask() -> str:
        try:
            return next(remaining)
        except StopIteration:
            raise EOFError from None

    code = play.play(TownEpisode(TASK), console, ask, turns=6)
    assert isinstance(console.file, io.StringIO)
    return code, console.file.getvalue()


def test_the_plan_in_shorthand_succeeds() -> None:
    payload = TASK.payload
    search = f'search query="{payload["place"]}, {payload["city"]}"'
    code, text = played(["location", search, "", f"route place={payload['goal']}", f"Done: {payload['confirmation']}."])
    assert code == 0
    assert f"tool: {payload['goal']} {payload['place']}, {payload['city']}." in text
    assert f"route to {payload['goal']}; report" in text
    assert "reward 1 (route 1, report 1)" in text


@pytest.mark.parametrize(
    ("lines", "code", "told"),
    [
        (["Sorry."], 1, "reward 0 (route 0, report 0)"),
        (["location"] * 6, 1, "reward 0 (no turns left)"),
        (["location"], 130, "You are in"),
        (['{"name": "search"'], 130, "tool: Error: The tool call is not valid JSON"),
        (["[bold]x[/bold] speed"], 1, "reward 0"),
        (['search query="open'], 130, "No hits."),
    ],
)
def test_other_ends(lines: list[str], code: int, told: str) -> None:
    ended, text = played(lines)
    assert ended == code
    assert told in text


def test_what_ends_the_episode_is_said() -> None:
    lines = played(["Sorry."])[1].splitlines()
    assert lines[-2:] == [
        "The user has nothing to answer to that: the episode is over.",
        "reward 0 (route 0, report 0)",
    ]


def test_nothing_has_failed_before_the_first_turn() -> None:
    first = played([""])[1]
    assert f"route to {TASK.payload['goal']}; report" in first
    assert "failed" not in first
    assert "failed: route, report" in played(["", "location", ""])[1]


def test_json_works_as_well() -> None:
    actions = list(plan_of(TASK).actions)
    assert played(actions)[0] == 0


def test_bad_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        play.main(["nav"])
    assert error.value.code == 2
    assert "nav_hard" in capsys.readouterr().err
