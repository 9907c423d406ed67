"""Executes notebooks from top to bottom: `python notebooks/execute.py NOTEBOOK [NOTEBOOK ...]`.

Prints one line per notebook. Exit code 0 if all succeeded, 1 if one raised, timed out or lost its kernel, 2 if a
notebook cannot be read or a package is missing. Notebooks are not changed; `--output FOLDER` keeps the executed copies.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description="Execute notebooks from top to bottom.")
    arguments.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    arguments.add_argument("--timeout", type=int, default=300, metavar="SECONDS", help="for each cell (default: 300)")
    arguments.add_argument("--output", type=Path, metavar="FOLDER", help="write the executed notebooks there")
    return arguments


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def failure(error: Exception, timeout: int) -> str:
    """One line for an exception of nbclient."""
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    if isinstance(error, CellTimeoutError):
        return f"a cell ran longer than {timeout} s"
    if isinstance(error, DeadKernelError):
        return "the kernel died"
    if isinstance(error, CellExecutionError):
        return f"{error.ename}: {first_line(error.evalue)}"
    return f"the kernel could not be used ({type(error).__name__}: {first_line(str(error))})"


def execute(path: Path, timeout: int, output: Path | None) -> str | None:
    """Executes one notebook in its folder; returns why it failed, or None.

    Raises:
        ValueError, OSError: the notebook cannot be read.
    """
    import nbformat
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(path.parent)}})
    failures = (CellExecutionError, CellTimeoutError, DeadKernelError, CellControlSignal, NoSuchKernel, RuntimeError)
    try:
        client.execute()
    except failures as error:
        return failure(error, timeout)
    finally:
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, output / path.name)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        import ipykernel  # noqa: F401
        import nbclient  # noqa: F401
    except ImportError as error:
        print(f"error: notebooks need {error.name}: pip install 'rti-exp[notebooks]'", file=sys.stderr)
        return 2
    study = os.environ.get("RTI_STUDY", "")
    if study and not study.startswith("wandb:"):
        os.environ["RTI_STUDY"] = os.path.abspath(study)  # a notebook runs in its own folder
    worst = 0
    for path in options.notebooks:
        try:
            reason = execute(path, options.timeout, options.output)
        except (ValueError, OSError) as error:
            print(f"error: {path}: cannot be read: {first_line(str(error))}", file=sys.stderr)
            worst = 2
            continue
        if reason is None:
            print(f"executed: {path}")
        else:
            print(f"error: {path}: {reason}", file=sys.stderr)
            worst = max(worst, 1)
    return worst


if __name__ == "__main__":
    sys.exit(main())
