"""Remote models in a run: what has to hold before it starts, and what they took, in the metrics.

torch and the client are imported by what is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rti_exp.config.check import Config
from rti_exp.config.remote_settings import RemoteSettings
from rti_exp.config.settings import Scorer, SettingsError

if TYPE_CHECKING:
    from pytorch_lightning import Callback

    from rti_exp.engines.remote import Usage
    from rti_exp.engines.remote.engine import RemoteEngine
    from rti_exp.intervention.pipeline import Interventions

COUNTS = ("answered", "from_cache", "lost", "tries", "prompt_tokens", "completion_tokens", "without_counts")


def remote_settings(config: Config) -> dict[str, RemoteSettings]:
    """The endpoints that the config names, by their key."""
    parts = {
        "policy": config.policy,
        "validator": config.validator.options,
        "corrector": config.corrector.options,
        "verifier": config.verifier.options,
    }
    found = {f"{key}.remote": getattr(options, "remote", None) for key, options in parts.items()}
    return {key: settings for key, settings in found.items() if isinstance(settings, RemoteSettings)}


def check_remote(config: Config) -> None:
    """That remote models can be asked, and are asked only for what they can give.

    Raises:
        SettingsError: the client or an API key is missing, or pi_cal is to be scored by a remote model.
    """
    endpoints = remote_settings(config)
    if not endpoints:
        return
    from rti_exp.engines.remote import ChatModel

    for key, settings in endpoints.items():
        ChatModel(settings, key=key)
    if "corrector.remote" in endpoints and config.reweight.scorer is Scorer.source:
        raise SettingsError(
            "reweight.scorer=source: must be policy or off with a remote corrector, whose endpoint gives no log-probs "
            "of given tokens"
        )


def usage_callbacks(steps_in: Interventions | None) -> list[Callback]:
    """One that puts what remote roles took into each iteration's metrics; none without remote roles."""
    engines = _remote_engines(steps_in)
    if steps_in is None or not engines:
        return []
    from pytorch_lightning.callbacks import LambdaCallback

    before = _total(engines, steps_in)

    def add(trainer: Any, module: Any, *rest: object) -> None:
        now = _total(engines, steps_in)
        taken = {name: now[name] - before[name] for name in now}
        before.update(now)
        module.last_metrics = {**module.last_metrics, **_over_ranks(taken)}

    return [LambdaCallback(on_train_batch_end=add)]


def _remote_engines(steps_in: Interventions | None) -> list[RemoteEngine]:
    from rti_exp.engines.remote.engine import RemoteEngine

    if steps_in is None:
        return []
    roles = (steps_in.validator, steps_in.corrector, steps_in.verifier)
    return [role.engine for role in roles if role is not None and isinstance(role.engine, RemoteEngine)]


def _total(engines: list[RemoteEngine], steps_in: Interventions) -> dict[str, float]:
    """Sums since the start, of this process."""
    usages: list[Usage] = [engine.model.usage for engine in engines]
    total: dict[str, float] = {f"remote/{name}": sum(getattr(one, name) for one in usages) for name in COUNTS}
    total["remote/changed_texts"] = getattr(steps_in.corrector, "changed_texts", 0)
    return total


def _over_ranks(taken: Mapping[str, float]) -> dict[str, float]:
    from rti_exp.training.distributed import gather_from_ranks

    ranks = gather_from_ranks(dict(taken))
    return {name: sum(rank[name] for rank in ranks) for name in taken}
