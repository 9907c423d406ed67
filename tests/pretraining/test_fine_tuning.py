"""Fine-tuning a language model on the town, with a small random model in its place."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rti_exp import warmstart
from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.check import check
from rti_exp.config.defaults import default_settings
from rti_exp.config.paths import policy_folder
from rti_exp.config.settings import SettingsError
from rti_exp.models.load import load, load_tokenizer
from rti_exp.pretraining import fine_tuning
from rti_exp.pretraining.corpus import draw_document, rollout_document
from rti_exp.pretraining.demonstrations import demonstrate, random_task
from rti_exp.pretraining.fine_tuning import settings_of
from rti_exp.pretraining.progress import TrainingProgress
from rti_exp.pretraining.recipe import default_prior
from rti_exp.pretraining.supervised_training import cross_entropy
from rti_exp.rollout.renderer import renderer_for
from tests.support.chat_fakes import chat_tokenizer, save_chat_policy

SMALL = ("training.documents=8", "training.steps=3", "training.documents_per_step=4", "training.warmup=1", "device=cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_policy(tmp_path_factory.mktemp("policy"), "qwen3")


def read_losses(folder: Path) -> list[float]:
    return json.loads((folder / "warmstart.json").read_text())["losses"]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()


@pytest.fixture(params=[0, 2], ids=["all weights", "lora"])
def arguments(base: Path, request: pytest.FixtureRequest) -> list[str]:
    if request.param:
        pytest.importorskip("peft", reason="the extra lora is not installed")
    return ["policy=hf", f"policy.path={base}", f"policy.lora.rank={request.param}", *SMALL]


def test_the_settings_fit_the_policy_group(composed) -> None:
    policy, settings = settings_of(["policy=smollm2"])
    assert policy.path == "package:smollm2"
    assert settings.prior == default_prior(formal=0.0)
    tuned = check(composed("policy=smollm2_town"))
    assert tuned.policy.path == settings.out
    assert tuned.policy.chat == settings.chat
    assert tuned.prompts == settings.prompts


def test_it_saves_a_trained_policy_with_its_recipe(arguments: list[str], base: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "made"
    arguments = [*arguments, f"out={out}", "training.learning_rate=0.003", "training.steps=12"]
    fine_tuning.run(arguments)
    assert policy_folder(str(out)) == out
    before, after = weights_of(base), weights_of(out)
    assert set(after) == set(before)
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())
    losses = read_losses(out)
    assert len(losses) == 12
    if "policy.lora.rank=0" in arguments:
        assert sum(losses[-3:]) < sum(losses[:3])
    assert load_tokenizer(out, given="x").chat_template == load_tokenizer(base, given="x").chat_template
    assert "step 12 of 12" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="exists; set overwrite=true"):
        fine_tuning.run(arguments)


def test_an_interrupted_run_resumes_to_the_same_policy(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    arguments = [*arguments, "training.steps=7", "save_every=2"]
    fine_tuning.run([*arguments, f"out={tmp_path / 'unbroken'}"])
    assert [path.name for path in tmp_path.iterdir()] == ["unbroken"]
    after_step = TrainingProgress.after_step

    def interrupted(self: TrainingProgress, losses: list[float], *state) -> None:
        after_step(self, losses, *state)
        if len(losses) == 5:
            raise KeyboardInterrupt

    out = tmp_path / "broken"
    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "after_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fine_tuning.run([*arguments, f"out={out}"])
    assert not out.exists()
    with pytest.raises(
        SettingsError, match=r"state\.pt belongs to a run with other settings; delete .*broken\.partial"
    ):
        fine_tuning.run([*arguments, f"out={out}", "training.learning_rate=0.01"])
    capsys.readouterr()
    fine_tuning.run([*arguments, f"out={out}"])
    assert "step 5 of 7" in capsys.readouterr().out  # the first step after the last save
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "unbroken"]
    unbroken, resumed = weights_of(tmp_path / "unbroken"), weights_of(out)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in unbroken.items())
    assert read_losses(tmp_path / "unbroken") == read_losses(out)
    assert len(read_losses(out)) == 7


def test_documents_are_rendered_as_rollouts_are() -> None:
    """Calls are in the model's format, tools in the system message, and only assistant turns are trained."""
    renderer = renderer_for(chat_tokenizer("qwen3"), default_settings(ChatSettings), setting="x")
    demonstration = demonstrate(
        random_task(random.Random(0), family="nav_hard"), random.Random(0), default_prior(), forced="right"
    )
    document = rollout_document(renderer, demonstration)
    text = renderer.text(document.token_ids)
    assert '<tools>\n{"type": "function", "function": {"name": "location"' in text
    trained = renderer.text([i for i, on in zip(document.token_ids, document.trained, strict=True) if on])
    turns = trained.split("<|im_end|>")[:-1]
    assert len(turns) == len(demonstration.steps)
    assert turns[0].startswith('<tool_call>\n{"name": "')
    assert turns[0].endswith("\n</tool_call>")
    assert "<|im_start|>" not in trained
    for seed in range(30):
        drawn = draw_document(
            renderer, settings_of(["policy=smollm2"])[1].prompts, default_prior(), random.Random(seed)
        )
        assert any(drawn.trained)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (["policy=smollm2", "traning.steps=1"], "traning: unknown key; did you mean training?"),
        (["policy=smollm2", "device=tpu"], "device='tpu': must be one of"),
        (["policy=smollm2", "training.steps=0"], "training.steps=0: must be an integer >= 1"),
        (["policy=smollm2", "policy.path=nowhere"], "policy.path='nowhere'"),
        (["policy=smollm2", "--force"], "no such option"),
        (["policy=smollm3"], "smollm3"),
    ],
)
def test_bad_arguments_are_refused_before_anything_slow(bad, message, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["warmstart", *bad])
    with pytest.raises(SystemExit) as exit_:
        warmstart.main()
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_and_config_are_printed(capsys) -> None:
    fine_tuning.run(["policy=smollm2", "--help"])
    assert "python -m rti_exp.warmstart policy=smollm2" in capsys.readouterr().out
    fine_tuning.run(["policy=smollm2", "training.steps=7", "--cfg", "job"])
    assert "steps: 7" in capsys.readouterr().out


def test_mixed_precision_learns_as_float32_does(base: Path, tmp_path: Path) -> None:
    """Weights cached from an earlier step would show in the losses."""
    losses = {}
    for precision in ("32-true", "bf16-mixed"):
        out = tmp_path / precision
        steps = ("training.learning_rate=0.003", "training.steps=12")
        fine_tuning.run(["policy=hf", f"policy.path={base}", f"out={out}", *SMALL, *steps, f"precision={precision}"])
        losses[precision] = torch.tensor(read_losses(out))
    exact, mixed = losses["32-true"], losses["bf16-mixed"]
    assert not torch.equal(mixed, exact)
    assert exact[0] - exact[-1] > 0.5
    assert (mixed - exact).abs().max() < 0.05
    with pytest.raises(SettingsError, match="precision='16-mixed': must be one of 32-true, bf16-mixed"):
        settings_of(["policy=smollm2", "precision=16-mixed"])


def test_the_loss_is_computed_in_float32(base: Path) -> None:
    policy, settings = settings_of(["policy=hf", f"policy.path={base}"])
    loaded = load(base, policy.dtype, given="x")
    renderer = renderer_for(loaded.tokenizer, settings.chat, setting="x")
    document = draw_document(renderer, settings.prompts, settings.prior, random.Random(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = cross_entropy(loaded.model, [document])
    assert loss.dtype is torch.float32
    assert loss.item() != loss.to(torch.bfloat16).item()


def test_a_file_in_the_way_and_a_missing_gpu_are_refused_first(base: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(fine_tuning, "fine_tune", None)  # fails if anything slow starts
    (tmp_path / "file").touch()
    of_policy = ["policy=hf", f"policy.path={base}", "overwrite=true"]
    for out in ("file", "file/made"):
        with pytest.raises(SettingsError, match=r"cannot create .*\(Not a directory\)"):
            fine_tuning.run([*of_policy, f"out={tmp_path / out}"])
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match="device='cuda'"):
            fine_tuning.run([*of_policy, f"out={tmp_path / 'made'}", "device=cuda"])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
