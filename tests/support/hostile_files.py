"""Files of run directories as an attacker or a broken disk leaves them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
"""447 bytes that expand to 9**10 values."""
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10))
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
"""Sets a terminal's title and clears it."""
HUGE = "1" + "0" * 400


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(text)


def appended(name: str, line: str) -> Callable[[Path], object]:
    def append(run: Path) -> None:
        with (run / name).open("a") as file:
            file.write(line + "\n")

    return append


def status(**changes: Any) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        text = json.dumps({**json.loads((run / "status.json").read_text()), **changes})
        (run / "status.json").write_text(text.replace('"1e400"', "1e400").replace('"HUGE"', HUGE))

    return change


def piped(name: str) -> Callable[[Path], object]:
    def pipe(run: Path) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)

    return pipe


def endless(name: str) -> Callable[[Path], object]:
    def link(run: Path) -> None:
        (run / name).unlink()
        (run / name).symlink_to("/dev/zero")

    return link


DAMAGES: dict[str, Callable[[Path], object]] = {
    "aliases": written("config.yaml", ALIASES),
    "merges": written("config.yaml", MERGES),
    "a config that holds itself": written("config.yaml", "gate: &a {delta: *a}"),
    "a config with a date": written("config.yaml", "seed: 0\ngate: {delta: 2001-01-01}"),
    "a config with a huge number": written("config.yaml", f"seed: {HUGE}\ngate: {{delta: {HUGE}}}"),
    "a config with odd keys": written("config.yaml", "seed: 0\n1: {null: 2, true: 3, 1.5: 4}"),
    "a config that is a pipe": piped("config.yaml"),
    "a config without end": endless("config.yaml"),
    "an infinite iteration": appended("metrics.jsonl", '{"kind": "train", "iteration": 1e400}'),
    "a huge iteration": appended("metrics.jsonl", f'{{"kind": "train", "iteration": {HUGE}}}'),
    "a late iteration": appended("metrics.jsonl", '{"kind": "train", "iteration": 9007199254740993}'),
    "an infinite metric": appended("metrics.jsonl", '{"kind": "train", "iteration": 2, "reward/mean": 1e400}'),
    "a huge metric": appended("metrics.jsonl", f'{{"kind": "train", "iteration": 2, "reward/mean": {HUGE}}}'),
    "an infinite count": appended(
        "metrics.jsonl",
        '{"kind": "eval", "iteration": 2, "split": "heldout", '
        '"tasks": [{"task_id": "a/0", "family": "a", "samples": 1e400, "successes": 1}]}',
    ),
    "a huge count": appended(
        "metrics.jsonl",
        '{"kind": "eval", "iteration": 2, "split": "heldout", '
        f'"tasks": [{{"task_id": "a/0", "family": "a", "samples": {HUGE}, "successes": 1}}]}}',
    ),
    "nested metrics": appended(
        "metrics.jsonl", '{"kind": "train", "iteration": 2, "x": ' + "[" * 500 + "]" * 500 + "}"
    ),
    "metrics that are a pipe": piped("metrics.jsonl"),
    "metrics without end": endless("metrics.jsonl"),
    "records that are a pipe": piped("interventions.jsonl"),
    "an infinite record": appended("interventions.jsonl", '{"iteration": 1e400, "outcome": [1], "weights": [1e400]}'),
    "a huge record": appended(
        "interventions.jsonl", f'{{"iteration": {HUGE}, "perplexity": {HUGE}, "weights": [{HUGE}]}}'
    ),
    "a nested record": appended("interventions.jsonl", '{"outcome": ' + "[" * 900 + "]" * 900 + "}"),
    "an infinite count of iterations": status(iterations_done="1e400"),
    "a huge count of iterations": status(iterations_done="HUGE"),
    "a large count of iterations": status(iterations_done=10**15),
    "infinite compute": status(compute={"seconds": "1e400", "trained_tokens": "1e400"}),
    "huge compute": status(compute={"seconds": "HUGE", "trained_tokens": "HUGE"}),
    "a huge seed": status(seed="HUGE"),
    "an odd start": status(started="0001-01-01T00:00:00+14:00", ended={"a": 1}),
    "an odd error": status(state="failed", error={"type": [ESCAPE], "message": {"a": ESCAPE}, "traceback": 3}),
    "odd overrides": status(overrides={"a": [ESCAPE]}, study=[ESCAPE]),
    "a status that is a pipe": piped("status.json"),
    "a status without end": endless("status.json"),
}
"""What is done to a run directory."""
