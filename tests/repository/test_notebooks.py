from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import studies

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch):
    """The kernel finds this checkout, installed or not."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


@pytest.fixture(scope="module")
def execute() -> ModuleType:
    spec = importlib.util.spec_from_file_location("execute_notebooks", NOTEBOOKS / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_notebook(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
    return path


@pytest.mark.parametrize(
    ("name", "figures", "texts"),
    [
        ("reading_a_sweep", [0, 5, 3, 0], ["0.812 [0.750,\u00a00.938]"]),
        ("delta_study", [0, 3, 0, 2], ["0.812 [0.750,\u00a00.938]", "Difference to gate.delta=0"]),
        ("no_verifier", [0, 0, 3, 1], ["<td>gate.delta=5</td><td class=number>2</td><td class=number>0</td>"]),
        ("self_vs_teacher", [0, 2, 0, 3], ["<td class=number>2.12</td><td class=number>33.3%</td>"]),
        ("training_dynamics", [0, 2, 2, 3], ["Fixed probe, ret: perplexity"]),
        ("reading_interventions", [0, 0, 0, 0, 0], ["3 of 3 interventions.", "<ins>, Kyoto</ins>", "&lt;think&gt;"]),
    ],
)
def test_the_notebooks_show_their_charts(
    execute: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    figures: list[int],
    texts: list[str],
) -> None:
    study = studies.write_delta_study(tmp_path / "runs" / "delta")
    studies.add_probes(study)
    monkeypatch.setenv("RTI_STUDY", str(study))
    path = NOTEBOOKS / f"{name}.ipynb"
    before = path.read_bytes()
    assert execute.main([str(path), "--output", str(tmp_path)]) == 0
    assert path.read_bytes() == before
    notebook = nbformat.read(tmp_path / path.name, as_version=4)
    shown = [output["data"]["text/html"] for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [text.count("<svg") for text in shown] == figures
    for text in texts:
        assert text in "".join(shown), text


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_or_logic(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert not any(word in cell.source for cell in code for word in ("def ", "for ", "if ", "lambda"))


def test_a_relative_study_is_resolved_against_the_working_directory(
    execute: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_notebook(
        tmp_path / "books" / "where.ipynb", "import os\nassert os.path.isdir(os.environ['RTI_STUDY'])"
    )
    (tmp_path / "runs" / "study").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RTI_STUDY", "runs/study")
    assert execute.main([str(path)]) == 0


def test_a_missing_study_is_one_clear_line(
    execute: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RTI_STUDY", str(tmp_path / "absent"))
    assert execute.main([str(NOTEBOOKS / "reading_a_sweep.ipynb")]) == 1
    error = capsys.readouterr().err
    assert error.endswith(f"reading_a_sweep.ipynb: StudyError: no such study directory: {tmp_path / 'absent'}\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('first\\nsecond')", "ValueError: first"),
        ("import time; time.sleep(60)", "a cell ran longer than 1 s"),
        ("import os; os._exit(1)", "the kernel died"),
    ],
    ids=["error", "time-out", "dead kernel"],
)
def test_a_notebook_that_fails_is_one_clear_line(
    execute: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, reason: str
) -> None:
    path = write_notebook(tmp_path / "fails.ipynb", source)
    assert execute.main([str(path), "--timeout", "1" if "sleep" in source else "60"]) == 1
    assert capsys.readouterr().err == f"error: {path}: {reason}\n"


@pytest.mark.parametrize("content", [None, "not json"])
def test_an_unreadable_notebook_is_exit_code_2(
    execute: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    path = tmp_path / "broken.ipynb"
    if content is not None:
        path.write_text(content)
    assert execute.main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: cannot be read: ")


def test_a_failing_notebook_does_not_stop_the_others(
    execute: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write_notebook(tmp_path / name, source) for name, source in (("a.ipynb", "1 / 0"), ("b.ipynb", "1"))]
    assert execute.main([str(path) for path in paths]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"executed: {paths[1]}\n"
    assert captured.err == f"error: {paths[0]}: ZeroDivisionError: division by zero\n"
