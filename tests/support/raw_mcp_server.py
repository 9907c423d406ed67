"""An MCP server over stdio without the SDK, so that it can answer what the SDK's server would not.

    python raw_mcp_server.py [stuck|growing]

`stuck` lists its tools under a cursor that never moves, `growing` under one that always does. The tool `error` takes
the code of the JSON-RPC error that it answers with; `unlock` adds the tool `open`, removes `long` and announces it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

ANY = {"type": "object"}
ZURICH = {"city": "Zürich"}
CONTENTS: dict[str, list[dict[str, Any]]] = {
    "text": [{"type": "text", "text": "only text"}],
    "structured": [],
    "resource": [{"type": "resource", "resource": {"uri": "file:///notes.txt", "text": "The code is 7."}}],
    "blob": [{"type": "resource", "resource": {"uri": "file:///a.zip", "mimeType": "application/zip", "blob": "AA=="}}],
    "link": [
        {"type": "resource_link", "uri": "https://x.org/a", "name": "a", "mimeType": "text/html", "description": "Map."}
    ],
    "image": [{"type": "image", "data": "AA==", "mimeType": "image/png"}, {"type": "text", "text": "a map"}],
    "picture": [{"type": "image", "data": "AA==", "mimeType": "image/png"}],
    "invalid": [{"type": "hologram"}],
    "open": [{"type": "text", "text": "opened"}],
}
STRUCTURED = ("structured", "image", "picture")
names = ["error", "unlock", "long", "die", *(name for name in CONTENTS if name != "open")]


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def tool(name: str) -> dict[str, Any]:
    schema = {"outputSchema": ANY} if name in ("text", "structured") else {}
    return {"name": name, "description": name, "inputSchema": ANY, **schema}


def listed(cursor: str | None, mode: str) -> dict[str, Any]:
    following = {"": None, "stuck": "next", "growing": f"{cursor or ''}x"}[mode]
    return {"tools": [tool(name) for name in names], **({"nextCursor": following} if following else {})}


def called(number: Any, name: str, arguments: dict[str, Any]) -> None:
    if name == "die":
        os._exit(3)
    if name == "error":
        send(id=number, error={"code": arguments["code"], "message": "no such town"})
        return
    if name == "unlock":
        names.remove("long")
        names.append("open")
        send(method="notifications/tools/list_changed")
    content = CONTENTS.get(name, [{"type": "text", "text": "done"}])
    structured = {"structuredContent": ZURICH} if name in STRUCTURED else {}
    send(id=number, result={"content": content, **structured})


def main(mode: str) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        number, params = request.get("id"), request.get("params") or {}
        if request["method"] == "initialize":
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "raw", "version": "1"}
            version = params["protocolVersion"]
            send(id=number, result={"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
        elif request["method"] == "tools/list":
            send(id=number, result=listed(params.get("cursor"), mode))
        elif request["method"] == "tools/call":
            called(number, params["name"], params.get("arguments") or {})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
