"""Runs a mock service's file on loopback: python -m rti_exp.envs.claw_eval.service_process FILE PORT

The files of the benchmark listen on all interfaces; here every `uvicorn.run` listens on 127.0.0.1 and the given port.
Their clock stands still. The process ends when its standard input does, so that it never outlives its parent.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from typing import Any

import fastapi  # noqa: F401  # pyright: ignore[reportMissingImports]  (it must see the real clock's types)
import uvicorn  # pyright: ignore[reportMissingImports]

from rti_exp.envs.claw_eval.frozen_clock import freeze


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def main(path: str, port: int) -> None:
    run = uvicorn.run

    def on_loopback(app: Any, **options: Any) -> None:
        run(app, **{**options, "host": "127.0.0.1", "port": port, "log_level": "critical"})

    uvicorn.run = on_loopback
    threading.Thread(target=_end_with_parent, daemon=True).start()
    freeze()
    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
