"""One failed group of the guessing world, and the record that an attempt on it should leave."""

import dataclasses
import math

from rti_exp.types import Check, Correction, Evidence, Intervention, Message, Outcome, ToolCall, Verdict
from tests.support.fakes import GuessEpisode, GuessWorld, call
from tests.support.interventions import (
    HARMFUL,
    CharRenderer,
    RoleEngine,
    failed_group,
    interventions,
)

WORLD = GuessWorld()
TASK = WORLD.tasks("train")[0]  # box a, key red, code 27; the failed episodes take blue
RENDERER = CharRenderer()
TAKE_BLUE, TAKE_RED = call("take", key="blue"), call("take", key="red")
EVIDENCE = Evidence(
    level="rubric", rubric=("the key fits", "the code is told"), failed=("the key fits", "the code is told")
)
TOLD = "the key fits; the code is told | failed: the key fits, the code is told"
VERDICT = Verdict(kind="harmful", step=0, reason="the wrong key", answers=(HARMFUL,))
START = GuessEpisode(TASK, WORLD).state_hash()
TOKENS = len(TAKE_RED) + 1
PASSED = (
    Check(name="gold", judge="policy", passed=True, answer='{"pass": true}'),
    Check(name="leak", judge="policy", passed=True, answer='{"pass": true}'),
    Check(name="plausible", judge="policy", passed=True, answer='{"pass": true}'),
)
CORRECTION = Correction(
    prompt_ids=(
        *RENDERER.opening([Message(role="user", content="box a")], ()),
        *RENDERER.action_ids(TAKE_BLUE),
        *RENDERER.appended([Message(role="system", content=f"rewrite: {TOLD} | the wrong key")], closed=True),
    ),
    action_ids=RENDERER.action_ids(TAKE_RED),
    text=TAKE_RED,
    message=Message(role="assistant", content=TAKE_RED, tool_calls=(ToolCall(name="take", arguments={"key": "red"}),)),
    source="self",
)
SELECTED = 1
"""Of members 0 and 1, the one that seed 0 selects in iteration 2."""


def run(engine: RoleEngine, world: GuessWorld = WORLD, **settings) -> list[Intervention]:
    """The records of one failed group of two, of which one is intervened on."""
    [group] = interventions(engine, world, **settings)([failed_group(WORLD, TASK)], 2)
    return list(group.interventions)


def expected(**changes) -> Intervention:
    """The record of an attempt that got as far as its scores, with `changes`."""
    scored = Intervention(
        id=f"2-box_0-{SELECTED}-0",
        task_id="box_0",
        family="box_even",
        parent=SELECTED,
        sample=0,
        verdict=VERDICT,
        outcome=Outcome.ACCEPTED,
        evidence=EVIDENCE,
        original=TAKE_BLUE,
        correction=CORRECTION,
        checks=PASSED,
        log_probs=(-0.5,) * TOKENS,
        calibration_log_probs=(-0.25,) * TOKENS,
        weights=(math.exp(0.25),) * TOKENS,
        perplexity=math.exp(0.5),
        state_hash=START,
    )
    return dataclasses.replace(scored, **changes)


UNSCORED = {"log_probs": (), "calibration_log_probs": (), "weights": (), "perplexity": None}
UNCORRECTED = {"correction": None, "checks": (), **UNSCORED}
NOT_HARMFUL = {"original": "", "state_hash": "", **UNCORRECTED}
