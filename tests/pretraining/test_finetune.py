"""Fine-tuning a language model on the town: a small random one stands for it."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rti_exp import warmstart
from rti_exp.config.check import check
from rti_exp.config.paths import policy_folder
from rti_exp.config.settings import SettingsError
from rti_exp.models.load import load, load_tokenizer
from rti_exp.pretraining import finetune
from rti_exp.pretraining.behaviour import play, random_task
from rti_exp.pretraining.documents import draw_document, rollout_document
from rti_exp.pretraining.finetune import FinetuneSettings, settings_of
from rti_exp.pretraining.keeping import Keeper
from rti_exp.pretraining.prior import Prior, TrainingSettings
from rti_exp.pretraining.training import loss_of
from rti_exp.rollout.renderer import renderer_for
from tests.support.chat_fakes import chat_tokenizer, save_chat_policy

SMALL = ("training.documents=8", "training.steps=3", "training.documents_per_step=4", "training.warmup=1", "device=cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_policy(tmp_path_factory.mktemp("policy"), "qwen3")


def test_defaults_stand_in_the_yaml_and_fit_the_policy_that_is_made(composed) -> None:
    policy, settings = settings_of(["policy=smollm2"])
    assert policy.path == "package:smollm2"
    wanted = FinetuneSettings(
        chat=settings.chat,
        prompts=settings.prompts,
        prior=Prior(formal=0.0),
        training=TrainingSettings(documents=4000, steps=400, documents_per_step=8, learning_rate=3e-4, warmup=20),
    )
    assert settings == wanted
    made = check(composed("policy=smollm2_town"))
    assert made.policy.path == settings.out
    assert made.policy.chat == settings.chat
    assert made.prompts == settings.prompts


@pytest.mark.parametrize("rank", [0, 2])
def test_a_run_makes_a_policy_that_says_what_it_was_taught(base: Path, tmp_path: Path, rank: int, capsys) -> None:
    if rank:
        pytest.importorskip("peft", reason="the extra lora is not installed")
    out = tmp_path / "made"
    arguments = ["policy=hf", f"policy.path={base}", f"policy.lora.rank={rank}", f"out={out}", *SMALL]
    finetune.run([*arguments, "training.learning_rate=0.003", "training.steps=12"])
    assert policy_folder(str(out)) == out
    before, after = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (base, out))
    assert set(after.state_dict()) == set(before.state_dict())
    assert any(not torch.equal(one, other) for one, other in zip(before.parameters(), after.parameters(), strict=True))
    made = json.loads((out / "warmstart.json").read_text())
    assert len(made["losses"]) == 12
    if not rank:
        assert sum(made["losses"][-3:]) < sum(made["losses"][:3])
    assert load_tokenizer(out, given="x").chat_template == load_tokenizer(base, given="x").chat_template
    assert "step 12 of 12" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="is there already"):
        finetune.run(arguments)


@pytest.mark.parametrize("rank", [0, 2])
def test_one_that_was_ended_goes_on_to_the_same_policy(
    base: Path, tmp_path: Path, rank: int, monkeypatch, capsys
) -> None:
    if rank:
        pytest.importorskip("peft", reason="the extra lora is not installed")
    options = [
        "policy=hf",
        f"policy.path={base}",
        f"policy.lora.rank={rank}",
        *SMALL,
        "training.steps=7",
        "save_every=2",
    ]
    finetune.run([*options, f"out={tmp_path / 'whole'}"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole"]
    after = Keeper.after

    def ends(self, *arguments) -> None:
        after(self, *arguments)
        if len(self.losses) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Keeper, "after", ends)
    out = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        finetune.run([*options, f"out={out}"])
    assert not out.exists()
    monkeypatch.setattr(Keeper, "after", after)
    with pytest.raises(SettingsError, match=r"state\.pt is of other settings; delete .*broken\.partial"):
        finetune.run([*options, f"out={out}", "training.learning_rate=0.01"])
    capsys.readouterr()
    finetune.run([*options, f"out={out}"])
    assert "step 5 of 7" in capsys.readouterr().out  # four steps were kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "whole"]
    one, other = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "broken"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    losses = [json.loads((tmp_path / name / "warmstart.json").read_text())["losses"] for name in ("whole", "broken")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 7


def test_documents_are_what_a_rollout_would_be() -> None:
    """Calls in the model's own spelling, the town's tools in the system message, only the assistant's turns trained."""
    renderer = renderer_for(chat_tokenizer("qwen3"), FinetuneSettings().chat, setting="x")
    played = play(random_task(random.Random(0), family="nav_hard"), random.Random(0), Prior(), forced="right")
    document = rollout_document(renderer, played)
    text = renderer.text(document.token_ids)
    assert '<tools>\n{"type": "function", "function": {"name": "location"' in text
    trained = renderer.text([i for i, kept in zip(document.token_ids, document.trained, strict=True) if kept])
    turns = trained.split("<|im_end|>")[:-1]
    assert len(turns) == len(played.steps)
    assert turns[0].startswith('<tool_call>\n{"name": "')
    assert turns[0].endswith("\n</tool_call>")
    assert "<|im_start|>" not in trained
    for seed in range(30):
        made = draw_document(renderer, settings_of(["policy=smollm2"])[1].prompts, Prior(), random.Random(seed))
        assert any(made.trained)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["policy=smollm2", "traning.steps=1"], "traning: unknown key; did you mean training?"),
        (["policy=smollm2", "device=tpu"], "device='tpu': must be one of"),
        (["policy=smollm2", "training.steps=0"], "training.steps=0: must be an integer >= 1"),
        (["policy=smollm2", "policy.path=nowhere"], "policy.path='nowhere'"),
        (["policy=smollm2", "--force"], "no such option"),
        (["policy=smollm3"], "smollm3"),
    ],
)
def test_bad_arguments_are_told_before_anything_slow(arguments, said, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["warmstart", *arguments])
    with pytest.raises(SystemExit) as ended:
        warmstart.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_and_the_config_can_be_seen(capsys) -> None:
    finetune.run(["policy=smollm2", "--help"])
    assert "python -m rti_exp.warmstart policy=smollm2" in capsys.readouterr().out
    finetune.run(["policy=smollm2", "training.steps=7", "--cfg", "job"])
    assert "steps: 7" in capsys.readouterr().out


def test_mixed_precision_learns_as_float32_does(base: Path, tmp_path: Path) -> None:
    """Weights of an earlier step would be told apart."""
    losses = {}
    for precision in ("32-true", "bf16-mixed"):
        out = tmp_path / precision
        steps = ("training.learning_rate=0.003", "training.steps=12")
        finetune.run(["policy=hf", f"policy.path={base}", f"out={out}", *SMALL, *steps, f"precision={precision}"])
        losses[precision] = torch.tensor(json.loads((out / "warmstart.json").read_text())["losses"])
    exact, mixed = losses["32-true"], losses["bf16-mixed"]
    assert not torch.equal(mixed, exact)
    assert exact[0] - exact[-1] > 0.5
    assert (mixed - exact).abs().max() < 0.05
    with pytest.raises(SettingsError, match="precision='16-mixed': must be one of 32-true, bf16-mixed"):
        settings_of(["policy=smollm2", "precision=16-mixed"])


def test_the_loss_is_no_bf16_number(base: Path) -> None:
    policy, settings = settings_of(["policy=hf", f"policy.path={base}"])
    loaded = load(base, policy.dtype, given="x")
    renderer = renderer_for(loaded.tokenizer, settings.chat, setting="x")
    document = draw_document(renderer, settings.prompts, settings.prior, random.Random(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(loaded.model, [document])
    assert loss.dtype is torch.float32
    assert loss.item() != loss.to(torch.bfloat16).item()


def test_a_file_in_the_way_and_a_missing_gpu_are_told_first(base: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(finetune, "finetune", None)  # nothing slow is begun
    (tmp_path / "file").touch()
    chosen = ["policy=hf", f"policy.path={base}", "overwrite=true"]
    for out in ("file", "file/made"):
        with pytest.raises(SettingsError, match=r"cannot make .*\(Not a directory\)"):
            finetune.run([*chosen, f"out={tmp_path / out}"])
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match="device='cuda'"):
            finetune.run([*chosen, f"out={tmp_path / 'made'}", "device=cuda"])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
