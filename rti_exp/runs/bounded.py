"""Files of run directories that anyone may have written, read in bounded time and memory, or refused with a reason.

This module imports no torch.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 2**24
"""Of a file that is read as a whole. A config or a status has some kilobytes."""
MAX_YAML_CHARACTERS = 2**20
MAX_VALUES = 100_000
"""Of a config, a status or a row of metrics, counted where aliases are expanded."""
MAX_DEPTH = 50
MAX_INTEGER = 2**53
"""Of a count or an iteration. Larger integers are not exact as floats."""
MAX_SEED = 2**64
"""Of any integer: those of 309 digits have no float."""


def read_text(path: Path) -> str:
    """
    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a regular file (a pipe would never end), too large, or not UTF-8.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES // 2**20} MiB")
    return content.decode("utf-8")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C, where PyYAML has it: seven times faster."""


class _Loader(_Base):
    def flatten_mapping(self, node: Any) -> None:
        """Merge keys copy mappings, and copies of copies grow without bound; configs of runs have none."""
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.constructor.ConstructorError(None, None, "merge keys are not read", node.start_mark)


def load_yaml(text: str) -> Any:
    """Plain data out of YAML, no objects.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: it is not plain data of a bounded size.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise ValueError(f"more than {MAX_YAML_CHARACTERS} characters")
    return bounded(yaml.load(text, Loader=_Loader))  # a safe loader, in either case


def bounded(value: Any) -> Any:
    """`value`, plain data.

    Raises:
        ValueError: it is too large or nested too deeply (with aliases expanded), or holds anything but plain data.
    """
    _count(value, {}, 0)
    return value


def _count(value: Any, counted: dict[int, int], depth: int) -> int:
    """The number of values in `value`; `counted` has those of containers that were met before, by identity."""
    if isinstance(value, int) and abs(value) > MAX_SEED:
        raise ValueError("holds an integer that is too large")
    if value is None or isinstance(value, bool | int | float | str):
        return 1
    if not isinstance(value, Mapping | list):
        raise ValueError(f"holds a {type(value).__name__}")
    if depth == MAX_DEPTH:  # also where a container holds itself
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    known = counted.get(id(value))
    if known is not None:
        return known
    items = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
    count = 1 + sum(_count(item, counted, depth + 1) for item in items)
    if count > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")
    counted[id(value)] = count
    return count


def whole_number(value: Any) -> int:
    """A count or an iteration.

    Raises:
        ValueError: not an integer from 0 to `MAX_INTEGER`.
        TypeError: not a number.
    """
    try:
        number = int(value)
    except OverflowError:  # infinity, as JSON's 1e400 is read
        raise ValueError(f"not a whole number: {value}") from None
    if not 0 <= number <= MAX_INTEGER:
        raise ValueError(f"not from 0 to 2**53: {str(value)[:40]}")
    return number


def visible(text: object) -> str:
    """A name or a path with escapes for the characters that a terminal would obey or cannot show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
