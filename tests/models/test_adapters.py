import pytest
import torch

from rti_exp.config import policy_settings as model_settings
from rti_exp.config.defaults import default_settings
from rti_exp.config.policy_settings import LoraSettings, check_lora
from rti_exp.config.settings import SettingsError
from rti_exp.models.adapters import add_lora, has_lora, merge_lora
from rti_exp.models.weights import kept_weights, restore_weights
from tests.support.fakes import tiny_gpt2, tiny_model

IDS = torch.tensor([[1, 7, 3, 250, 9]])


def with_adapters(make=tiny_model, *, used: bool = True):
    model = make()
    add_lora(model, default_settings(LoraSettings, rank=4, alpha=8.0), seed=3)
    if used:
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data = torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize("make", [tiny_model, tiny_gpt2])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_adapters_change_nothing_at_first_and_merge_exactly(make):
    pytest.importorskip("peft", reason="the extra lora is not installed")
    plain = make()(IDS).logits
    assert torch.equal(with_adapters(make, used=False)(IDS).logits, plain)
    model = with_adapters(make)
    adapted = model(IDS).logits
    assert (adapted - plain).abs().max() > 0.1
    merged = merge_lora(model)
    assert not has_lora(merged)
    assert set(merged.state_dict()) == set(make().state_dict())
    torch.testing.assert_close(merged(IDS).logits, adapted, rtol=1e-4, atol=1e-4)


def test_only_adapters_are_trained_and_kept():
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model = with_adapters()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    kept = kept_weights(model)
    assert set(kept) == trained
    other = with_adapters(used=False)
    restore_weights(other, kept)
    assert torch.equal(other(IDS).logits, model(IDS).logits)
    with pytest.raises(ValueError, match="another model's"):
        restore_weights(tiny_model(), kept)


def test_a_whole_model_is_kept_whole():
    model, other = tiny_model(seed=1), tiny_model(seed=2)
    assert set(kept_weights(model)) == set(model.state_dict())
    restore_weights(other, kept_weights(model))
    assert torch.equal(other(IDS).logits, model(IDS).logits)


def test_what_a_module_keeps_beside_its_tensors_is_kept():
    class Counting(torch.nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            self.calls = state["calls"]

    first, second = Counting(2, 2), Counting(2, 2)
    restore_weights(second, kept_weights(first))
    assert second.calls == 3
    assert torch.equal(second.weight, first.weight)


def test_equal_seeds_give_equal_adapters():
    pytest.importorskip("peft", reason="the extra lora is not installed")
    first, second = (kept_weights(with_adapters(used=False)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_cannot_be_is_told(monkeypatch):
    with pytest.raises(SettingsError, match=r"lora\.rank=-1"):
        default_settings(LoraSettings, rank=-1)
    if model_settings.importlib.util.find_spec("peft"):
        with pytest.raises(SettingsError, match=r"policy\.lora\.targets='nothing'"):
            add_lora(tiny_model(), default_settings(LoraSettings, rank=2, targets="nothing"), seed=0)
    monkeypatch.setattr(model_settings.importlib.util, "find_spec", lambda name: None)
    check_lora(default_settings(LoraSettings))
    with pytest.raises(
        SettingsError, match=r"policy\.lora\.rank=4: needs the package peft: pip install 'rti-exp\[lora\]'"
    ):
        check_lora(default_settings(LoraSettings, rank=4))
