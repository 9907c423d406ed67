"""Waiting for the disk beside the work: one thread that syncs what has been written. This module imports no torch."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import queue
import signal
import threading
from collections.abc import Callable
from pathlib import Path


class Job:
    """Something to be done for files that are written already, and what takes their writing back."""

    def __init__(self, work: Callable[[], object], undo: Callable[[], object]) -> None:
        self.work = work
        self.undo = undo
        # A lock, since a signal's exception amid its acquire or release leaves it whole; an Event it may leave locked.
        self.running = threading.Lock()
        self.running.acquire()


class Disk:
    """Does jobs one after the other, in the order in which they come, in a thread of its own.

    So a checkpoint takes its name only once the rows before it are on the disk. The first job that fails is the last:
    it and all later ones are undone, and its error is raised by each `wait` from then on.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], object], undo: Callable[[], object]) -> Job:
        """Have `work` done; returns at once."""
        job = Job(work, undo)
        self._jobs.put(job)
        return job

    def wait(self, job: Job | None) -> None:
        """Until `job` and all before it are done; None waits for nothing.

        Raises:
            Exception: what a job has failed with, whichever.
        """
        if job is not None:
            _until_done(job)
        if self.error is not None:
            raise self.error

    def flush(self) -> None:
        """Wait for all jobs.

        Raises:
            Exception: what a job has failed with.
        """
        self.drain()
        self.wait(None)

    def drain(self) -> None:
        """Wait for all jobs; what failed is not raised."""
        if self._thread.is_alive():
            _until_done(self.submit(_nothing, _nothing))

    def close(self) -> None:
        """Wait for all jobs, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        with contextlib.suppress(AttributeError):  # signals are the main thread's; not every system can say so
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        while (job := self._jobs.get()) is not None:
            try:
                if self.error is None:
                    job.work()
            except Exception as error:  # any: it is raised where the work came from
                self.error = error
            if self.error is not None:
                with contextlib.suppress(OSError):  # the first error counts
                    job.undo()
            job.running.release()


def _nothing() -> None:
    """The work of a job that only marks a place in the order."""


def _until_done(job: Job) -> None:
    with job.running:
        pass


class Staged:
    """A file that is written under another name in the same folder, until the disk has it.

    Args:
        path: The name it takes.
        temporary: The name it has until then; open as `file`, to be written.
    """

    def __init__(self, path: Path, temporary: Path) -> None:
        self.path = path
        self.temporary = temporary
        self.file = open(temporary, "wb")  # noqa: SIM115 (open until it is published or discarded)

    def publish(self) -> None:
        """Wait until it is on the disk, and give it its name; whatever goes wrong, that holds the old file or the new.

        Raises:
            OSError: the disk does not take it.
        """
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())
        os.replace(self.temporary, self.path)

    def discard(self) -> None:
        """Remove it: on a full disk it takes the room that others need."""
        with contextlib.suppress(OSError):  # on a broken disk the first error counts
            self.file.close()
        with contextlib.suppress(OSError):
            self.temporary.unlink(missing_ok=True)


BLOCK = 4096
"""What a device takes from memory begins, and is long, a multiple of it."""


def write_whole(path: Path, content: memoryview, size: int) -> None:
    """Write a file, and wait until the disk has it; past the page cache, where the file system can.

    That spares the processor a copy of it. Where the file system cannot, it is written as any other.

    Args:
        content: The file, up to `size`, and memory up to the next multiple of `BLOCK`; best where it begins at one.

    Raises:
        OSError: the disk does not take it; what is written of it stays.
    """
    descriptor, direct = _open_to_write(path)
    try:
        written, end = 0, -(-size // BLOCK) * BLOCK if direct else size
        while written < end:
            try:
                written += os.pwrite(descriptor, content[written:end], written)
            except OSError as error:
                if not direct or error.errno != errno.EINVAL:
                    raise
                fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)  # no O_DIRECT any more
                direct, end = False, size
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_to_write(path: Path) -> tuple[int, bool]:
    """A new file's descriptor, and whether it is written past the page cache."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666), True
    except (AttributeError, OSError):  # not every system, and not every file system, has it
        return os.open(path, flags, 0o666), False


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
