"""`python -m rti_exp.export`: exports load as they were trained, and overwrite only exports."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rti_exp import export
from rti_exp.config.check import check
from rti_exp.config.defaults import default_settings
from rti_exp.config.policy_settings import LoraSettings
from rti_exp.models.adapters import add_lora
from rti_exp.models.load import load
from rti_exp.models.weights import kept_weights
from rti_exp.runs import read_status
from rti_exp.training.checkpoints import save_checkpoint
from tests.support.chat_fakes import save_chat_policy

IDS = torch.tensor([[1, 7, 3, 250, 9]])


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return save_chat_policy(tmp_path_factory.mktemp("policy"))


def finished_run(root: Path, base: Path, composed, *, rank: int = 0, iterations: int = 3):
    """(run directory, the trained model) of a run that changed every trained weight."""
    from omegaconf import OmegaConf

    overrides = ["policy=hf", f"policy.path={base}", f"policy.lora.rank={rank}", "policy.lora.alpha=4"]
    config = check(composed(*overrides, "probe=none"))
    directory = root / "runs" / "study" / config.key
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config.plain)))
    status = {"state": "done", "run_key": config.key, "study": "study", "overrides": [], "seed": 0}
    (directory / "status.json").write_text(json.dumps(status))
    assert read_status(directory)
    model = load(base, "float32", given="policy.path").model
    if rank:
        add_lora(model, default_settings(LoraSettings, rank=rank, alpha=4.0), seed=0)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    state = {"iteration": iterations, "model": kept_weights(model), "optimizer": {}, "policy_version": 1}
    save_checkpoint(directory / "checkpoints", config.key, state, previous=0)
    return directory, model


def run(*arguments: str) -> int:
    return export.main([*arguments])


def test_all_trained_weights_are_exported(tmp_path, base, composed):
    directory, model = finished_run(tmp_path, base, composed)
    out = tmp_path / "out"
    assert run(directory.name[:6], f"out={out}", f"runs_root={tmp_path / 'runs'}") == 0
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    before = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    assert (loaded(IDS).logits - before(IDS).logits).abs().max() > 0.1
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(base).chat_template
    origin = json.loads((out / "export.json").read_text())
    assert (origin["run_key"], origin["iteration"], origin["adapter"]) == (directory.name, 3, False)


def test_adapters_are_merged_or_saved_alone(tmp_path, base, composed):
    peft = pytest.importorskip("peft", reason="the extra lora is not installed")
    directory, model = finished_run(tmp_path, base, composed, rank=3)
    trained = model(IDS).logits
    merged, alone = tmp_path / "merged", tmp_path / "alone"
    assert run(str(directory), f"out={merged}") == 0
    assert run(str(directory), f"out={alone}", "adapter=true") == 0
    loaded = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    torch.testing.assert_close(loaded(IDS).logits, trained, rtol=1e-4, atol=1e-4)
    assert not any(path.name.startswith("model") for path in alone.iterdir())
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    assert (plain(IDS).logits - trained).abs().max() > 0.1
    adapted = peft.PeftModel.from_pretrained(plain, alone).eval()
    torch.testing.assert_close(adapted(IDS).logits, trained, rtol=1e-4, atol=1e-4)


def test_the_dtype_can_be_chosen(tmp_path, base, composed):
    directory, _ = finished_run(tmp_path, base, composed)
    assert run(str(directory), f"out={tmp_path / 'out'}", "dtype=bfloat16") == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype is torch.bfloat16


def test_overwriting_removes_the_earlier_export(tmp_path, base, composed):
    pytest.importorskip("peft", reason="the extra lora is not installed")
    directory, model = finished_run(tmp_path, base, composed, rank=3)
    out = f"out={tmp_path / 'out'}"
    assert run(str(directory), out, "adapter=true") == 0
    assert run(str(directory), out, "overwrite=true") == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits, rtol=1e-4, atol=1e-4)
    assert not list((tmp_path / "out").glob("adapter*"))
    assert run(str(directory), out, "adapter=true", "overwrite=true") == 0
    assert not list((tmp_path / "out").glob("model*"))


def test_a_folder_that_is_not_an_export_is_not_overwritten(tmp_path, base, composed, capsys):
    directory, _ = finished_run(tmp_path, base, composed)
    runs = tmp_path / "runs"
    before = sorted(runs.rglob("*"))
    assert run(str(directory), f"out={runs}", "overwrite=true") == 2
    assert "exists and is not an export" in capsys.readouterr().err
    assert sorted(runs.rglob("*")) == before


def test_the_starting_policy_is_not_overwritten(tmp_path, composed, capsys):
    start = save_chat_policy(tmp_path / "start")
    (start / "export.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in start.iterdir()}
    directory, _ = finished_run(tmp_path, start, composed)
    assert run(str(directory), f"out={start}", "overwrite=true") == 2
    assert "is the policy that the run started from" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in start.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out=x"], "needs one run and out=FOLDER"),
        (["{run}"], "needs one run and out=FOLDER"),
        (["{run}", "out=x", "where=y"], "where: unknown key"),
        (["{run}", "out=x", "adapter=maybe"], "must be true or false"),
        (["{run}", "out=x", "dtype=int8"], "dtype='int8': must be one of"),
        (["{run}", "out=x", "adapter=true"], "has no adapters"),
        (["{run}", "out={run}"], "exists; set overwrite=true"),
        (["{run}", "out={run}/status.json/x"], "cannot be created (Not a directory)"),
        (["nowhere", "out=x", "runs_root=none"], "there are no runs in"),
        (["{run}", "out=x", "--force"], "no such option"),
    ],
)
def test_bad_arguments(tmp_path, base, composed, capsys, arguments, message):
    directory, _ = finished_run(tmp_path, base, composed)
    assert run(*(text.format(run=directory) for text in arguments)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_run_without_a_checkpoint_is_refused(tmp_path, base, composed, capsys):
    directory, _ = finished_run(tmp_path, base, composed)
    for path in (directory / "checkpoints").iterdir():
        path.unlink()
    assert run(str(directory), f"out={tmp_path / 'out'}") == 2
    assert "it has no valid checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
