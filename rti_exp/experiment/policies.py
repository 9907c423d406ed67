"""Loaded models: weights, tokenizer, engine and chat format of a policy path. The called code imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rti_exp.config.paths import policy_folder
from rti_exp.config.policy_settings import PolicySettings
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Part
from rti_exp.experiment.parts import build_part, options_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from rti_exp.engines.base import Engine
    from rti_exp.rollout.chat_renderer import ChatRenderer
    from rti_exp.rollout.token_renderer import TokenRenderer


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A model with its tokenizer, the engine that samples it, and the renderer of its chat format."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    engine: Engine
    renderer: TokenRenderer | ChatRenderer

    def has_tokenizer_of(self, other: LoadedPolicy) -> bool:
        return self.tokenizer.backend_tokenizer.to_str() == other.tokenizer.backend_tokenizer.to_str()


class PolicyLoader:
    """Loads models in the policy's dtype and chat format, each with an engine of the configured kind.

    Args:
        settings: The policy's group.
        engine: The engine's group.
        seed: Initialises adapters.
    """

    def __init__(self, settings: PolicySettings, engine: Part, seed: int) -> None:
        self._settings = settings
        self._engine = engine
        self._seed = seed

    def policy(self, device: torch.device | None = None) -> LoadedPolicy:
        """The policy, with its adapters and gradient checkpointing.

        Raises:
            SettingsError: it cannot be loaded or rendered, or the engine cannot run it.
        """
        return self._load(self._settings.path, "policy.path", device, trained=True)

    def model(self, path: str, key: str, device: torch.device | None) -> LoadedPolicy:
        """Another model; `key` names its path in errors.

        Raises:
            SettingsError: as for the policy.
        """
        return self._load(path, key, device, trained=False)

    def _load(self, path: str, key: str, device: torch.device | None, *, trained: bool) -> LoadedPolicy:
        from rti_exp.models.adapters import add_lora
        from rti_exp.models.load import load
        from rti_exp.models.recompute import recompute_layers
        from rti_exp.rollout.renderer import renderer_for

        named = f"{key}={path!r}"
        loaded = load(policy_folder(path, key), self._settings.dtype, given=named)
        renderer = renderer_for(loaded.tokenizer, self._settings.chat, setting=named)
        if trained and self._settings.lora.rank:
            add_lora(loaded.model, self._settings.lora, seed=self._seed)
        if trained and self._settings.gradient_checkpointing:
            recompute_layers(loaded.model)
        if device is not None:
            loaded.model.to(device)  # pyright: ignore[reportArgumentType]  (a decorator hides its signature)
        try:
            engine = build_part(self._engine, model=loaded.model, **options_of(self._engine))
        except ValueError as error:
            raise SettingsError(f"{named}: {error}") from error
        return LoadedPolicy(model=loaded.model, tokenizer=loaded.tokenizer, engine=engine, renderer=renderer)
