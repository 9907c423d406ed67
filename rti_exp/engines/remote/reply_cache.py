"""Answers on disk: one JSON file per answered request.

A file is named by a hash of its request and also holds the request, without secrets of the environment, so that a
request never gets another's answer.
Files are replaced atomically, so several processes may share a folder.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rti_exp.engines.remote.messages import Reply, read_reply
from rti_exp.runs.json_lines import write_atomically
from rti_exp.runs.redaction import redacted_data


class ReplyCache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, request: Mapping[str, Any]) -> Path:
        text = json.dumps(request, sort_keys=True, separators=(",", ":"))
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return self.folder / name[:2] / f"{name}.json"

    def get(self, request: Mapping[str, Any]) -> Reply | None:
        """The stored answer to this request; None, with a warning if the file is damaged, where there is none."""
        request = redacted_data(request)
        path = self._path(request)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            if entry["request"] != request:
                raise ValueError("it holds another request")
            return replace(read_reply(entry["reply"]), from_cache=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            warnings.warn(f"{path} cannot be read ({error}); the endpoint is asked again", stacklevel=2)
            return None

    def put(self, request: Mapping[str, Any], reply: str) -> None:
        """
        Raises:
            OSError: the file cannot be written.
        """
        request = redacted_data(request)
        path = self._path(request)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"request": request, "reply": reply}, ensure_ascii=False, indent=1) + "\n")
