"""No secret reaches a file: one in the environment, and one that was put into the config by mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from rti_exp.config.secrets import refuse_secret_arguments, refuse_secrets
from rti_exp.config.settings import SettingsError
from rti_exp.runs.json_lines import LineFile
from rti_exp.runs.redaction import redact_output, redacted, secret_values
from rti_exp.runs.status import error_record, read_status, write_status
from tests.support.jobs import FAULTY, SMALL, environment

MARKER = "marker-7f3e91c2d4-secret-value"
VARIABLES = ("OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "DATABASE_PASSWORD", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(autouse=True)
def _marked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, MARKER)


def files_with(text: str, root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_which_variables_hold_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false or true")
    monkeypatch.setenv("SHORT_TOKEN", "1234567")
    for name in ("MY_OPENAI_KEY", "GITHUB_PAT"):
        monkeypatch.setenv(name, MARKER)
    assert {*VARIABLES, "MY_OPENAI_KEY", "GITHUB_PAT"} <= set(secret_values())
    assert not {"TOKENIZERS_PARALLELISM", "SHORT_TOKEN", "PATH"} & set(secret_values())


@pytest.mark.parametrize(
    "argument",
    [
        f"study={MARKER}",
        f"policy.path=/models/{MARKER}/x",
        f"+logger.anything=[a,{MARKER}]",
        f"+{MARKER}=1",
        MARKER,
        f"corrector.api_key={MARKER}",
        "corrector.api_key=sk-not-a-name",
        "+hydra.job.env_set.OPENAI_API_KEY=abcdefgh",
        "logger.entity=sk-proj-abcdefghij0123456789",
        "logger.project=hf_abcdefghijklmnop",
        "corrector.base_url=https://user:pass1234@example.org/v1",
        "+a.password='hunter2'",
        "api_key=OPENAI_API_KEY,other",
    ],
)
def test_a_secret_in_an_argument_is_refused_and_not_shown(argument: str) -> None:
    with pytest.raises(SettingsError) as caught:
        refuse_secret_arguments(["gate.delta=5", argument])
    for shown in (MARKER, "abcdefgh", "sk-", "pass1234", "hunter2"):
        assert shown not in str(caught.value)


def test_what_is_no_secret_passes() -> None:
    harmless = ["corrector.api_key=OPENAI_API_KEY", "corrector.api_key=null", "-m", "gate.delta=0,5,20,inf", "seed=1"]
    harmless += ["api_key=OPENAI_API_KEY,HF_TOKEN", "rollout.max_tokens=32", "budget.tokens=1e6", "study=task-risk-1"]
    harmless += ["policy.path=/a/sk-b/c", "corrector.base_url=http://127.0.0.1:8000/v1", "+x=mask-abcdefghijklmnopqrst"]
    refuse_secret_arguments(harmless)
    refuse_secrets({"corrector": {"api_key": "OPENAI_API_KEY", "api_keys": None, "list": ["a", 1, None]}, "seed": 0})


def test_a_secret_deep_in_a_config_is_refused_by_its_key() -> None:
    with pytest.raises(SettingsError, match=r"^a\.b\.1\.c: holds the value of the environment variable ") as caught:
        refuse_secrets({"a": {"b": ["x", {"c": f"Bearer {MARKER}"}]}})
    assert MARKER not in str(caught.value)
    with pytest.raises(SettingsError, match=r"^a\.client_secret: must be the NAME"):
        refuse_secrets({"a": {"client_secret": 12345678}})


def call(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**environment(), "HOME": str(cwd / "home"), "XDG_CACHE_HOME": str(cwd / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("rti_exp.train", (f"study={MARKER}",)),
        ("rti_exp.train", ("-m", "gate.delta=0,5", f"+corrector.api_key={MARKER}")),
        ("rti_exp.train", ("-m", f"policy.path={MARKER},other")),
        ("rti_exp.train", (f"gate.delta={MARKER}]",)),
        ("rti_exp.evaluate", (f"policy.path={MARKER}",)),
        ("rti_exp.roles", (f"policy.path={MARKER}",)),
        ("rti_exp.warmstart", (f"out={MARKER}",)),
    ],
)
def test_a_mistaken_value_is_exit_code_2_and_in_no_file(
    module: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = call(module, *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert MARKER not in done.stdout + done.stderr
    assert not files_with(MARKER, tmp_path)
    assert not [path for path in tmp_path.rglob("*") if MARKER in path.name]


@pytest.mark.slow
def test_a_secret_in_the_environment_is_in_no_file_of_a_sweep(policy_folder: Path, tmp_path: Path) -> None:
    """Config, status, records, checkpoints, job.log, W&B's files, tables, figures, report."""
    small = [text for text in SMALL if not text.startswith(("logger", "max_iterations"))]
    arguments = ["-m", "gate.delta=0,inf", f"policy.path={policy_folder}", "max_iterations=1", *small]
    done = call("rti_exp.train", *arguments, "study=marked", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = call("rti_exp.report", "marked", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"config.yaml", "status.json", "job.log", "report.html", "iteration-000001.pt", "results.md"} <= written
    assert any(name.endswith(".wandb") for name in written)
    assert MARKER not in done.stdout + done.stderr + report.stdout
    assert files_with(MARKER, tmp_path) == []


def test_every_form_of_a_secret_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGER_TOKEN", f"{MARKER}-and-more")
    monkeypatch.setenv("ODD_PASSWORD", 'a/b "c"+\\d\n')
    assert redacted(f"401 for https://x?key={MARKER}&a=b") == "401 for https://x?key=[secret]&a=b"
    assert redacted(f"{MARKER}-and-more {MARKER}") == "[secret] [secret]"
    assert redacted('a/b "c"+\\d') == redacted("a%2Fb%20%22c%22%2B%5Cd") == "[secret]"
    assert redacted(json.dumps('say a/b "c"+\\d')) == '"say [secret]"'
    assert redacted("nothing to hide") == "nothing to hide"


def test_a_secret_in_an_error_is_in_no_status_and_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUOTED_SECRET", 'with "quotes" inside')
    text = f'401 for https://x?key={MARKER} and with "quotes" inside'
    write_status(tmp_path, {"state": "failed", "iterations_done": 0, "error": error_record(RuntimeError(text))})
    rows = LineFile(tmp_path / "rollouts.jsonl")
    rows.append([{"error": text, "messages": [{"content": text}], "reward": float("inf")}, {"error": None}])
    rows.close()
    redaction = "401 for https://x?key=[secret] and [secret]"
    assert (read_status(tmp_path) or {})["error"]["message"] == redaction
    assert [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()] == [
        {"error": redaction, "messages": [{"content": redaction}], "reward": "inf"},
        {"error": None},
    ]
    assert not files_with(MARKER, tmp_path)


def test_a_secret_that_is_a_word_of_ours_changes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILLY_PASSWORD", "iterations_done")
    write_status(tmp_path, {"state": "done", "iterations_done": 3})
    assert (read_status(tmp_path) or {})["iterations_done"] == 3


def test_what_a_command_prints_holds_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    redact_output()
    redact_output()  # once is enough
    print("out", MARKER)
    print(f"error: {MARKER}", file=sys.stderr)
    with warnings.catch_warnings(action="always"):
        warnings.showwarning(f"warning: {MARKER}", UserWarning, "x.py", 1, file=sys.stderr)
    out, error = capsys.readouterr()
    assert out == "out [secret]\n"
    assert "error: [secret]\n" in error
    assert MARKER not in error


@pytest.mark.slow
@pytest.mark.parametrize(("at", "timeout"), [("make", "null"), ("step", "null"), ("step", "20"), ("evidence", "20")])
def test_a_secret_in_an_environments_errors_is_in_no_file_and_on_no_terminal(
    at: str, timeout: str, policy_folder: Path, tmp_path: Path
) -> None:
    """As HTTP clients do: "401 for https://...?key=VALUE". Status, records, job.log, W&B's files, report, terminal."""
    faulty = [text for text in FAULTY if not text.startswith("+env.")]
    small = [text for text in SMALL if not text.startswith(("logger", "max_iterations", "env."))]
    arguments = ["-m", "seed=0,1", f"policy.path={policy_folder}", "max_iterations=1", *small, *faulty]
    arguments += ["+env.fault=leak", f"+env.at={at}", "study=leaks", f"+env.timeout={timeout}"]
    done = call("rti_exp.train", *arguments, cwd=tmp_path)
    report = call("rti_exp.report", "leaks", cwd=tmp_path)
    assert files_with("[secret]", tmp_path) or "[secret]" in done.stderr
    assert MARKER not in done.stdout + done.stderr + report.stdout + report.stderr
    assert files_with(MARKER, tmp_path) == []
