"""Lines over real pipes, within deadlines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rti_exp.processes.line_pipe import LinePipe, end_group, ending


@pytest.fixture
def ends() -> Iterator[tuple[int, int, int, int]]:
    """What our side writes to and reads from, then the other side's reading and writing end."""
    their_read, ours = os.pipe()
    our_read, theirs = os.pipe()
    descriptors = {ours, our_read, their_read, theirs}
    yield ours, our_read, their_read, theirs
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # a test has closed it
            os.close(descriptor)


def soon() -> float:
    return time.monotonic() + 5.0


def test_lines_come_whole_however_they_are_cut(ends) -> None:
    ours, our_read, _, theirs = ends
    pipe = LinePipe(ours, our_read)
    os.write(theirs, b"one\ntw")
    assert pipe.receive(soon()) == b"one"
    threading.Timer(0.05, os.write, (theirs, b"o\n\nfour\n")).start()
    assert [pipe.receive(soon()) for _ in range(3)] == [b"two", b"", b"four"]


def test_a_line_longer_than_the_pipe_holds_is_sent_whole(ends) -> None:
    ours, our_read, their_read, _ = ends
    line = b"x" * 3_000_000 + b"\n"
    taken: list[bytes] = []

    def read() -> None:
        with os.fdopen(os.dup(their_read), "rb") as stream:
            taken.append(stream.readline())

    reader = threading.Thread(target=read)
    reader.start()
    LinePipe(ours, our_read).send(line, soon())
    reader.join(5.0)
    assert taken == [line]


def test_a_deadline_is_kept_in_both_directions(ends) -> None:
    ours, our_read, _, theirs = ends
    pipe = LinePipe(ours, our_read)
    os.write(theirs, b"half a line")
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        pipe.receive(started + 0.2)
    with pytest.raises(TimeoutError):  # nobody reads
        pipe.send(b"x" * 3_000_000, time.monotonic() + 0.2)
    assert 0.3 < time.monotonic() - started < 4.0


def test_ends_of_the_other_side_and_too_long_answers(ends) -> None:
    ours, our_read, their_read, theirs = ends
    pipe = LinePipe(ours, our_read, largest=8)
    os.write(theirs, b"123456789")
    with pytest.raises(ValueError, match="more than 8 bytes"):
        pipe.receive(soon())
    os.close(theirs)
    os.close(their_read)
    with pytest.raises(EOFError):
        LinePipe(ours, our_read).receive(soon())
    with pytest.raises(BrokenPipeError):
        pipe.send(b"x\n", soon())


def test_how_a_process_ended() -> None:
    def started(code: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)

    assert ending(started("raise SystemExit(3)"), 10.0) == " (exit code 3)"
    sleeping = started("import time; time.sleep(60)")
    assert ending(sleeping, 0.01) == ""
    end_group(sleeping)
    assert ending(sleeping, 10.0) == " (SIGKILL)"
    end_group(sleeping)  # is gone already
