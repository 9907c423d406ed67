"""Strict JSON on disk: values as JSON, files replaced atomically, files of lines appended to.

Infinity is the string "inf", NaN is null. This module imports no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rti_exp.runs.disk import Disk, Job, Staged


def plain(value: Any) -> Any:
    """`value` as what strict JSON can hold: infinities as "inf" and "-inf", NaN as None.

    Raises:
        TypeError: a type that has no JSON form.
    """
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    to_list = getattr(value, "tolist", None)  # numpy and torch scalars and arrays, without importing either
    if to_list is not None:
        return plain(to_list())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def to_json(value: Any) -> str:
    """`value` as one line of strict JSON.

    Raises:
        TypeError: a type that has no JSON form.
    """
    try:
        return _LINE.encode(value)
    except (ValueError, TypeError):  # infinity, NaN, or a key of another kind, which only `plain` knows to write
        return _LINE.encode(plain(value))


_LINE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain)


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`; whatever goes wrong, the file holds the old text or the new."""
    staged = stage(path, text)
    try:
        staged.publish()
    finally:
        staged.discard()  # nothing, after a success


def stage(path: Path, text: str) -> Staged:
    """`text` as what `path` is to be replaced by. Nothing is left of it after an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    staged = Staged(path, temporary)
    try:
        staged.file.write(text.encode("utf-8", "backslashreplace"))
        staged.file.flush()
    except BaseException:
        staged.discard()
        raise
    return staged


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl file, without a torn last line and without the line that tells of the size cap.

    Raises:
        ValueError: a line other than the last is no JSON object; the message names file and line.
    """
    return (row for row in _objects(path) if not row.get("capped"))


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines of the file."""
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: not a JSON object")
            yield row


class LineFile:
    """Appends whole lines of strict JSON, each append on disk before it returns; with a `disk`, before the next begins.

    A torn last line, left by a killed process or a full disk, is cut off. With a limit, the first record
    that would pass it is dropped and one line {"capped": true, ...} is written in its place; what comes
    later is dropped.

    Args:
        path: The file; its folder is there.
        limit_bytes: None for no limit.
        disk: What waits for the disk instead of the caller. An append that fails there is taken back as a whole.
    """

    def __init__(self, path: Path, *, limit_bytes: int | None = None, disk: Disk | None = None) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.capped = False
        self._disk = disk
        self._syncing: Job | None = None
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._size = self._cut_torn_line()

    def _cut_torn_line(self) -> int:
        size = os.lseek(self._descriptor, 0, os.SEEK_END)
        end = size
        tail = b""
        while end > 0:
            start = max(0, end - 65536)
            tail = os.pread(self._descriptor, end - start, start)
            newline = tail.rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            os.ftruncate(self._descriptor, end)
        last = tail[: tail.rfind(b"\n")].rpartition(b"\n")[2]
        self.capped = last.startswith(b'{"capped": true')
        return end

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """
        Raises:
            OSError: the disk does not take the rows, or what was given to `disk` before.
        """
        self._wait()
        if self.capped:
            return
        chunk = b""
        for row in rows:
            line = (to_json(row) + "\n").encode("utf-8", "backslashreplace")
            if self.limit_bytes is not None and self._size + len(chunk) + len(line) > self.limit_bytes:
                note = {"capped": True, "iteration": row.get("iteration"), "limit_bytes": self.limit_bytes}
                chunk += (to_json(note) + "\n").encode()
                self.capped = True
                break
            chunk += line
        before = self._size
        try:
            written = 0
            while written < len(chunk):
                written += os.pwrite(self._descriptor, chunk[written:], before + written)
            if self._disk is None:
                os.fsync(self._descriptor)
        except OSError:
            self._cut(before)  # a full disk must not leave half a line
            raise
        self._size += len(chunk)
        if self._disk is not None:
            self._syncing = self._disk.submit(lambda: os.fsync(self._descriptor), lambda: self._cut(before))

    def _wait(self) -> None:
        """For the append before, which may yet be taken back."""
        if self._disk is not None:
            self._disk.wait(self._syncing)

    def _cut(self, size: int) -> None:
        with contextlib.suppress(OSError):  # the first error counts
            os.ftruncate(self._descriptor, size)
        self._size = size

    def keep(self, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
        """Drop the rows that are not wanted, the one that tells of the cap too; the file is replaced as a whole."""
        self._wait()
        rows = list(_objects(self.path))
        kept = [row for row in rows if wanted(row)]
        if len(kept) == len(rows):
            return
        write_atomically(self.path, "".join(to_json(row) + "\n" for row in kept))
        self.close()
        self._descriptor = os.open(self.path, os.O_RDWR)
        self._size = self._cut_torn_line()

    def close(self) -> None:
        os.close(self._descriptor)
