"""Fuzzing what reads untrusted text: the tool-call parser, the verdict parsers, the renderer, and the run reader.

    python -m tests.guarantees.fuzz                        ten minutes, guided by the lines that inputs reach
    python -m tests.guarantees.fuzz --seconds 60 --target tool_call

Inputs that reached something new are kept in tests/guarantees/corpus/<target>/, which
tests/guarantees/test_corpus.py reads on every run of
the tests; an input that breaks a promise is kept there too, and the command ends with exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
KEPT_BYTES = 2000
"""Longer inputs are not kept."""
KEPT_FILES = 120
"""Of one target."""


def strict(value: Any) -> None:
    """It can be written as strict JSON in UTF-8, and read again as the same."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    assert json.loads(text.encode("utf-8")) == value


def told(error: Exception) -> str:
    """What an error says, without its numbers and quotations: inputs that lead to another one are worth keeping."""
    return re.sub(r"'.*'|\d+|/\S+", "_", str(error))[:80]


def tool_call(data: bytes) -> str:
    """A call, or a sentence that says what is wrong; never another error."""
    from rti_exp.rollout.tool_calls import MalformedToolCall, parse_tool_call

    text = data.decode("utf-8", "surrogateescape" if data[:1] == b"\xed" else "replace")
    try:
        call = parse_tool_call(text)
    except MalformedToolCall as error:
        wrong = error
    else:
        assert isinstance(call.name, str)
        strict({"name": call.name, "arguments": dict(call.arguments)})
        return f"a call of {min(len(call.arguments), 3)}"
    assert str(wrong).endswith(".")
    return told(wrong)


def verdict(data: bytes) -> str:
    """True, False and a text, or unreadable; nothing is guessed."""
    from rti_exp.engines.model_text import verdict_text
    from rti_exp.intervention.answers import Unreadable, read_harmful, read_pass

    text = data.decode("utf-8", "replace")
    said = verdict_text(text)
    found = []
    try:
        harmful, reason = read_harmful(text)
    except Unreadable as error:
        found.append(told(error))
    else:
        assert json.loads(said, strict=False)["harmful"] is harmful
        assert isinstance(harmful, bool)
        strict(reason)
        found.append(f"{harmful} {bool(reason)}")
    try:
        passed = read_pass(text)
    except Unreadable as error:
        found.append(told(error))
    else:
        assert json.loads(said) == {"pass": passed}
        assert isinstance(passed, bool)
        found.append(f"pass {passed}")
    return "; ".join(found)


def rendering(data: bytes) -> str:
    """Text becomes no control token, comes back as it was, and any ids can be read."""
    from tests.support.training_fakes import RENDERER

    text = data.decode("utf-8", "replace")
    ids = RENDERER.action_ids(text)
    assert not set(ids[:-1]) & RENDERER.control_ids
    assert RENDERER.text(ids[:-1]) == text
    message = RENDERER.message(ids)
    assert message.content == text
    RENDERER.message(list(data))
    if message.tool_calls:
        strict(dict(message.tool_calls[0].arguments))
    return f"{bool(message.tool_calls)} {re.sub('[0-9]+', '_', message.malformed or '')}"


FILES = ("status.json", "metrics.jsonl", "interventions.jsonl", "config.yaml", "rollouts.jsonl")


def chat_turn(data: bytes) -> str:
    """Any turn of a chat model is read and rendered again; a call's arguments are strict JSON and stay as they are."""
    from tests.support.chat_fakes import SAY, chat_renderer

    renderer, text = chat_renderer(), data.decode("utf-8", "replace")
    ids = renderer.action_ids(text)
    assert renderer.text(ids[:-1]) == text
    message = renderer.message(ids)
    for called in message.tool_calls:
        strict({"name": called.name, "arguments": dict(called.arguments)})
    again = renderer.message(renderer.action_ids(renderer.calls_text(message)))
    assert again.tool_calls == message.tool_calls
    shown = renderer.text(renderer.opening([message], [{**SAY, "description": text}]))
    assert message.content in shown
    renderer.message(list(data))
    return f"{len(message.tool_calls)} {bool(message.thinking)} {told(ValueError(message.malformed))}"


def run_reader(data: bytes) -> str:
    """The first byte says which file of a run the rest is; reading it is a value or a clear error."""
    from rti_exp.analysis.study import StudyError, load_study
    from rti_exp.runs import Run, RunBroken, load_run, read_status

    name = FILES[data[0] % len(FILES)] if data else FILES[0]
    found = [name]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        directory = Path(folder) / "study" / "0123456789ab"
        directory.mkdir(parents=True)
        (directory / "status.json").write_text('{"state": "done", "run_key": "0123456789ab", "iterations_done": 1}')
        (directory / "config.yaml").write_text("{max_iterations: 1, seed: 0}")
        (directory / "metrics.jsonl").write_text('{"kind": "train", "iteration": 1, "reward/mean": 0.5}\n')
        (directory / name).write_bytes(data[1:])
        status = read_status(directory)
        assert status is None or status["state"] in ("running", "done", "failed", "interrupted")
        record = load_run(directory)
        for rows in (record.metrics, record.interventions, record.rollouts):
            try:
                found.append(str(min(len(rows()), 2)))
            except ValueError as error:
                found.append(told(error))
        try:
            load_study(directory.parent)
        except StudyError as error:
            found.append(told(error))
        try:
            run = Run(directory, key="0123456789ab", study="study")
        except RunBroken as error:
            found.append(told(error))
        else:
            run.append_metrics({"kind": "train", "iteration": 2})
            run.close()
    return "; ".join(found)


TARGETS: dict[str, Callable[[bytes], str]] = {
    "tool_call": tool_call,
    "verdict": verdict,
    "rendering": rendering,
    "chat_turn": chat_turn,
    "run_reader": run_reader,
}
WORDS = [
    b'{"name": "open", "arguments": {}}', b'{"harmful": true, "reason": "x"}', b'{"pass": false}', b'"arguments"',
    b"\\ud800", b"\\u0000", b"NaN", b"-Infinity", b"1e999", b"9" * 60, b"[" * 40, b'{"a":' * 40, b"\xff\xfe", b"\x00",
    b"<tool_call>", b"</tool_call>", b"<think>", b"</think>", b"\xee\x80\x800\xee\x80\x81", b"```json\n",
    b'<tool_call>{"name": "say", "arguments": {"t": "</tool_call>"}}</tool_call>', b"<|im_end|>",
    b"<|end|>", b"<|assistant|>", b"\xef\xbf\xbd", b"\xe2\x80\xa8", b'{"state": "done"}', b'{"iteration": 1}\n',
    b'{"kind": "eval", "iteration": 0, "tasks": []}\n', b"null", b"true", b"!!python/object", b"&a [*a]", b"\n", b"inf",
]  # fmt: skip


def corpus(target: str) -> list[bytes]:
    folder = CORPUS / target
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []


def keep(target: str, data: bytes) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def mutated(rng: random.Random, pool: list[bytes]) -> bytes:
    data = bytearray(rng.choice(pool))
    for _ in range(rng.randint(1, 4)):
        place = rng.randint(0, len(data))
        kind = rng.random()
        if kind < 0.35:
            data[place:place] = rng.choice(WORDS)
        elif kind < 0.55 and data:
            del data[place : place + rng.randint(1, 8)]
        elif kind < 0.75:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif kind < 0.9:
            other = rng.choice(pool)
            start = rng.randint(0, len(other))
            data[place:place] = other[start : start + rng.randint(1, 40)]
        else:
            data[place:place] = bytes(data[:place])[-rng.randint(1, 30) :]
    return bytes(data[:5000])


class Coverage:
    """Which steps from line to line of the package there have been, and which answers of a target; `new` says whether
    an input has led to another one."""

    def __init__(self) -> None:
        self.answers: set[str] = set()
        self.seen: set[tuple[str, int, int]] = set()
        self.found = False
        self.last = 0

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        if "rti_exp" not in frame.f_code.co_filename:
            return None
        edge = (frame.f_code.co_filename, self.last, frame.f_lineno)
        self.last = frame.f_lineno
        if edge not in self.seen:
            self.seen.add(edge)
            self.found = True
        return self._trace

    def new(self, run: Callable[[], str]) -> bool:
        self.found, self.last = False, 0
        sys.settrace(self._trace)
        try:
            answer = run()
        finally:
            sys.settrace(None)
        other = answer not in self.answers
        self.answers.add(answer)
        return self.found or other


def fuzz(target: str, seconds: float, seed: int) -> tuple[int, int, bytes | None]:
    """(inputs tried, inputs kept, one that broke a promise)."""
    check, rng, coverage = TARGETS[target], random.Random(seed), Coverage()
    pool = [*corpus(target), *WORDS] if corpus(target) else list(WORDS)
    for data in pool:
        coverage.new(lambda data=data: check(data))
    kept, tried, deadline = len(corpus(target)), 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        data = mutated(rng, pool)
        tried += 1
        try:
            if not coverage.new(lambda data=data: check(data)):
                continue
        except Exception:
            traceback.print_exc()
            keep(target, data)
            return tried, kept + 1, data
        pool.append(data)
        if len(data) <= KEPT_BYTES and kept < KEPT_FILES:
            keep(target, data)
            kept += 1
    return tried, kept, None


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.guarantees.fuzz", description="Fuzz what reads untrusted text."
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="in all, shared by the targets (default: 600)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="one target, or several; default: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    targets = options.target or list(TARGETS)
    broken = False
    for target in targets:
        tried, kept, data = fuzz(target, options.seconds / len(targets), options.seed)
        told = "every promise was kept" if data is None else f"a promise was broken by {data[:200]!r}"
        print(f"{target}: {tried} inputs, {kept} in the corpus; {told}", flush=True)
        broken = broken or data is not None
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
