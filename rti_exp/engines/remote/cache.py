"""Answers on disk: one JSON file for each request that was answered.

A file is named by a hash of its request and holds the request too, so that an answer is never another request's.
Files are written whole or not at all, and read as data: several processes may share a folder.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rti_exp.engines.remote.messages import BadReply, ReadReply, read_reply
from rti_exp.runs.json_lines import write_atomically


class ReplyCache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, request: Mapping[str, Any]) -> Path:
        text = json.dumps(request, sort_keys=True, separators=(",", ":"))
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return self.folder / name[:2] / f"{name}.json"

    def get(self, request: Mapping[str, Any]) -> ReadReply | None:
        """The answer to this very request; None if there is none that can be read."""
        path = self._path(request)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            warnings.warn(f"{path} cannot be read ({error}); the endpoint is asked again", stacklevel=2)
            return None
        if not isinstance(entry, dict) or entry.get("request") != request or not isinstance(entry.get("reply"), str):
            warnings.warn(f"{path} does not hold this request's answer; the endpoint is asked again", stacklevel=2)
            return None
        try:
            return read_reply(entry["reply"])
        except BadReply as error:
            warnings.warn(f"{path} holds no answer ({error}); the endpoint is asked again", stacklevel=2)
            return None

    def put(self, request: Mapping[str, Any], reply: str) -> None:
        """
        Raises:
            OSError: the disk does not take it.
        """
        path = self._path(request)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"request": request, "reply": reply}, ensure_ascii=False, indent=1) + "\n")
