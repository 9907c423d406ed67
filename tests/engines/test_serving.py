"""A real server on loopback: the embedded policy behind `transformers serve` plays as the policy itself."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from rti_exp.config.paths import policy_folder
from rti_exp.evaluate import main
from rti_exp.runs import read_lines

START_SECONDS = 300
# The policy's own format. Where calls are text, tool results arrive as the user's text.
TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages if message.role != "system" -%}
{%- set start = "[tool result]\\n" -%}
{%- if message.role == "user" and message.content.startswith(start) -%}
{{- "<|tool|>" + message.content[start | length:] + "<|end|>" -}}
{%- else -%}
{{- "<|" + message.role + "|>" + message.content + "<|end|>" -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|assistant|>" -}}{%- endif -%}
"""
# By default the server uses Qwen's template, by the model's type, and finds none of its tags.
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {"content": {"close": "<|end|>", "content": "text"}},
}


def with_template(folder: Path) -> Path:
    """The embedded policy as a folder that a chat server can serve."""
    shutil.copytree(policy_folder("builtin:tiny"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "response_template": RESPONSE}))
    return folder


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(base_url, model) of the server."""
    if any(find_spec(name) is None for name in ("openai", "fastapi", "uvicorn")):
        pytest.skip("needs the extra `remote` and transformers[serving]")
    folder = with_template(tmp_path / "served")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "import sys; from transformers.cli.transformers import main; sys.argv[0] = 'transformers'; main()"
    command = [sys.executable, "-c", code, "serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen([*command, str(folder)], stdout=log, stderr=subprocess.STDOUT)
    try:
        ends = time.monotonic() + START_SECONDS
        while True:
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < ends, (tmp_path / "log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1", str(folder)
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_a_served_policy_plays_as_the_policy_itself(
    served: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base_url, model = served
    common = ["eval.tasks=8", "eval.samples=1", "eval.temperature=0"]
    remote = [
        "policy=remote",
        "policy.tool_calls=text",
        "policy.max_tokens=32",
        f"policy.remote.base_url={base_url}",
        f"policy.remote.model={model}",
        "policy.remote.concurrency=1",
        "policy.remote.attempts=1",
    ]
    assert main([*remote, *common, "out=remote"]) == 0
    assert main(["policy=tiny", *common, "rollout.max_context=400", "out=local"]) == 0
    played = {}
    for name in ("remote", "local"):
        rows = list(read_lines(tmp_path / name / "rollouts-0of1.jsonl"))
        assert {row["status"] for row in rows} <= {"ok", "truncated"}
        played[name] = {
            row["task_id"]: (
                row["reward"],
                [said["content"] for said in row["messages"] if said["role"] == "assistant"],
            )
            for row in rows
        }
    assert len(played["local"]) == 8
    assert any(text.startswith("{") for _, texts in played["local"].values() for text in texts)
    assert played["remote"] == played["local"]
