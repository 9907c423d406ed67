"""Compiled rollouts and updates for a small Qwen3 on one CPU thread. Everything else enters by `fast_path`."""

from __future__ import annotations

from rti_exp.compiled_qwen3.agreement import fast_path

__all__ = ["fast_path"]
