"""Strict JSON on disk: values as JSON, files replaced atomically, files of lines.

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
from typing import IO, Any

from rti_exp.runs.redaction import holds_secret, redacted_data


def plain(value: Any) -> Any:
    """`value` in the types of strict JSON: infinities as "inf" and "-inf", NaN as None.

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
    to_list = getattr(value, "tolist", None)  # numpy and torch scalars and arrays, imported by neither
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
    except (ValueError, TypeError):  # infinity, NaN, or a key of another type, which only `plain` converts
        return _LINE.encode(plain(value))


_LINE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain)


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` by `text`. After any failure, the file holds the old text or the new."""
    replace_atomically(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")))


def replace_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a temporary file in the same folder, syncs it, and gives it the name `path`.

    Args:
        write: Writes the content into the open file.

    Raises:
        OSError: the disk refused it; the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl file, without a torn last line and without the line that marks the size cap.

    Raises:
        ValueError: a line other than the last is not a JSON object; the message names file and line.
    """
    return (row for row in _objects(path) if not row.get("capped"))


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    """All complete lines of the file."""
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
    """Appends whole lines of strict JSON; `sync` waits until they are on the disk.

    A torn last line, left by a killed process or a full disk, is removed. With a limit, the first record that would
    exceed it is replaced by one line {"capped": true, ...}, and later records are dropped.

    Args:
        path: The file; its folder exists.
        limit_bytes: None for no limit.
    """

    def __init__(self, path: Path, *, limit_bytes: int | None = None) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.capped = False
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
        """Appends the rows, without secrets of the environment.

        Raises:
            OSError: the disk refused the rows; none of them is kept.
        """
        if self.capped:
            return
        chunk = b""
        for row in rows:
            text = to_json(row)
            if holds_secret(text):  # rare, so that plain rows are not walked through
                text = to_json(redacted_data(plain(row)))
            line = (text + "\n").encode("utf-8", "backslashreplace")
            if self.limit_bytes is not None and self._size + len(chunk) + len(line) > self.limit_bytes:
                note = {"capped": True, "iteration": row.get("iteration"), "limit_bytes": self.limit_bytes}
                chunk += (to_json(note) + "\n").encode()
                self.capped = True
                break
            chunk += line
        written = 0
        try:
            while written < len(chunk):
                written += os.pwrite(self._descriptor, chunk[written:], self._size + written)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(chunk)

    def sync(self) -> None:
        """Waits until all rows are on the disk.

        Raises:
            OSError: the disk refused them.
        """
        os.fsync(self._descriptor)

    def keep(self, keeps: Callable[[Mapping[str, Any]], bool]) -> None:
        """Drops the rows that `keeps` refuses, the cap line included; the file is replaced atomically."""
        rows = list(_objects(self.path))
        kept = [row for row in rows if keeps(row)]
        if len(kept) == len(rows):
            return
        write_atomically(self.path, "".join(to_json(row) + "\n" for row in kept))
        self.close()
        self._descriptor = os.open(self.path, os.O_RDWR)
        self._size = self._cut_torn_line()

    def close(self) -> None:
        os.close(self._descriptor)
