"""The folder of an evaluation: every rollout on a line, so that an interrupted evaluation resumes.

It holds `about.json` (the identity of the evaluation), `rollouts-*.jsonl` (one line per rollout), and at the end
`tasks.jsonl` (one line per task) and `result.json`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rti_exp.config.settings import SettingsError
from rti_exp.evaluation.pass_rates import Row, is_valid
from rti_exp.runs.json_lines import LineFile, plain, read_lines, to_json, write_atomically
from rti_exp.types import Task, ToolCall, Trajectory


class EvaluationFolder:
    """The rollouts of one evaluation. Several processes may write at once, each with a separate shard.

    Args:
        about: The identity of the evaluation, as plain data.
        shard: (number, number of shards).

    Raises:
        SettingsError: the folder cannot be created, or belongs to another evaluation.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], shard: tuple[int, int] = (0, 1)) -> None:
        self.path = path
        self._name = f"rollouts-{shard[0]}of{shard[1]}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"out={str(path)!r}: cannot be created ({error.strerror})") from error
        identity = json.loads(to_json(about))
        stored = _read_json(path / "about.json")
        if stored is not None and stored != identity:
            keys = sorted(key for key in {*stored, *identity} if stored.get(key) != identity.get(key))
            raise SettingsError(f"out={str(path)!r}: holds another evaluation; it differs in {', '.join(keys)}")
        write_atomically(path / "about.json", json.dumps(identity, indent=1, ensure_ascii=False) + "\n")

    @contextmanager
    def writing(self) -> Iterator[Callable[[Sequence[Row]], None]]:
        """A function that appends rows to this shard. They are on disk when it returns.

        Raises:
            SettingsError: another process writes this shard.
        """
        lock = os.open(self.path / f".{self._name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SettingsError(f"out={str(self.path)!r}: another process is evaluating there") from error
            lines = LineFile(self.path / f"{self._name}.jsonl")
            try:
                yield lines.append
            finally:
                lines.close()
        finally:
            os.close(lock)

    def rows(self) -> dict[tuple[str, int], Row]:
        """The rollouts of all shards, by task and sample. A valid rollout replaces an infrastructure failure.

        Raises:
            ValueError: a file is damaged; the message names the file and the line.
        """
        rows: dict[tuple[str, int], Row] = {}
        for path in sorted(self.path.glob("rollouts-*.jsonl")):
            for row in read_lines(path):
                key = (str(row["task_id"]), int(row["sample"]))
                if key not in rows or not is_valid(rows[key]):
                    rows[key] = row
        return rows

    def finish(self, result: Row) -> None:
        """Write `tasks.jsonl` and `result.json`."""
        lines = "".join(to_json(row) + "\n" for row in result["tasks"])
        write_atomically(self.path / "tasks.jsonl", lines)
        write_atomically(self.path / "result.json", json.dumps(plain(result), indent=1, allow_nan=False) + "\n")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SettingsError(f"{path} is damaged ({error}); move its folder away") from error


def rollout_row(task: Task, trajectory: Trajectory) -> dict[str, Any]:
    """The line of a rollout."""
    return {
        "task_id": task.id,
        "family": task.family,
        "sample": trajectory.member,
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "reward_parts": dict(trajectory.reward_parts),
        "turns": len(trajectory.turns),
        "tokens": trajectory.generated_tokens,
        "error": trajectory.error,
        "messages": [
            {
                "role": message.role,
                "content": message.content,
                **({"tool_calls": list(map(_call_row, message.tool_calls))} if message.tool_calls else {}),
                **({"thinking": message.thinking} if message.thinking else {}),
            }
            for turn in trajectory.turns
            for message in (turn.message, *turn.observations)
        ],
    }


def _call_row(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": plain(call.arguments)}
