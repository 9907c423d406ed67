"""Low-rank adapters, by peft (extra `lora`), put into the model's own modules.

The model stays the class that it was, so that engine, learner and checkpoints need not know of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedModel

from rti_exp.config.policy_settings import LoraSettings, check_lora
from rti_exp.config.settings import SettingsError

if TYPE_CHECKING:
    from peft import LoraConfig  # pyright: ignore[reportMissingImports]

NAME = "default"


def add_lora(model: PreTrainedModel, settings: LoraSettings, *, seed: int) -> None:
    """Adds adapters, in float32, and freezes everything else; at first they change nothing.

    Args:
        seed: of the random half of the adapters.

    Raises:
        SettingsError: peft is not installed, or `settings.targets` matches nothing.
    """
    check_lora(settings)
    from peft import inject_adapter_in_model  # pyright: ignore[reportMissingImports]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(lora_config(settings), model, adapter_name=NAME)
        except ValueError as error:
            raise SettingsError(f"policy.lora.targets={settings.targets!r}: {error}") from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.eval()


def lora_config(settings: LoraSettings) -> LoraConfig:
    from peft import LoraConfig  # pyright: ignore[reportMissingImports]

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=0.0,
        target_modules=settings.targets,
        bias="none",
        task_type="CAUSAL_LM",
    )


def has_lora(model: nn.Module) -> bool:
    return any(hasattr(module, "lora_A") for module in model.modules())


def merge_lora(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its adapters added to its weights and taken out of its modules."""
    for name, module in list(model.named_modules()):
        if not hasattr(module, "lora_A"):
            continue
        module.merge(safe_merge=True)  # pyright: ignore[reportCallIssue]
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, module.get_base_layer())  # pyright: ignore[reportCallIssue]
    for leftover in ("peft_config", "_hf_peft_config_loaded"):
        vars(model).pop(leftover, None)
    return model.requires_grad_(True)


def save_adapter(model: PreTrainedModel, settings: LoraSettings, folder: Path, *, base: str) -> None:
    """The adapters alone, as `peft.PeftModel.from_pretrained(model, folder)` and transformers load them."""
    from safetensors.torch import save_file

    weights = {
        f"base_model.model.{name.replace(f'.{NAME}.', '.')}": parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if "lora_" in name
    }
    config = lora_config(settings)
    config.base_model_name_or_path = base
    config.inference_mode = True
    config.save_pretrained(str(folder))
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
