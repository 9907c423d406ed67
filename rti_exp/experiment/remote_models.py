"""Remote models in a run: the checks before it starts, and the metrics of their usage.

The called code imports torch and the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rti_exp.config.remote_settings import RemoteSettings
from rti_exp.config.settings import Scorer, SettingsError
from rti_exp.config.typed_config import Config

if TYPE_CHECKING:
    from rti_exp.intervention.pipeline import Roles

COUNTS = ("answered", "from_cache", "lost", "tries", "prompt_tokens", "completion_tokens", "without_counts")


def endpoints(config: Config) -> dict[str, RemoteSettings]:
    """The endpoints that the config names, by their key."""
    options = {
        "policy": config.policy,
        "validator": config.validator.options,
        "corrector": config.corrector.options,
        "verifier": config.verifier.options,
    }
    remote = {f"{key}.remote": getattr(value, "remote", None) for key, value in options.items()}
    return {key: settings for key, settings in remote.items() if isinstance(settings, RemoteSettings)}


def check_endpoints(endpoints: Mapping[str, RemoteSettings], scorer: Scorer) -> None:
    """
    Raises:
        SettingsError: the client or an API key is missing, or a remote model would have to score pi_cal.
    """
    if not endpoints:
        return
    from rti_exp.engines.remote import ChatModel

    for key, settings in endpoints.items():
        ChatModel(settings, key=key)
    if "corrector.remote" in endpoints and scorer is Scorer.source:
        raise SettingsError(
            "reweight.scorer=source: must be policy or off with a remote corrector, whose endpoint gives no log-probs "
            "of given tokens"
        )


class RemoteUsage:
    """Metrics of the remote roles: requests and tokens of the iteration, over all ranks.

    Args:
        engines: The remote roles' engines.
        corrector: Counts texts that its tokenizer changed, if it is a remote one.
    """

    def __init__(self, engines: Sequence[Any], corrector: Any) -> None:
        self._engines = engines
        self._corrector = corrector
        self._before = self._totals()

    def begin(self) -> None:
        self._before = self._totals()

    def metrics(self) -> dict[str, float | None]:
        from rti_exp.training.distributed import gather_from_ranks

        totals = self._totals()
        ranks = gather_from_ranks({name: value - self._before[name] for name, value in totals.items()})
        return {name: sum(rank[name] for rank in ranks) for name in totals}

    def _totals(self) -> dict[str, float]:
        usages = [engine.model.usage for engine in self._engines]
        totals: dict[str, float] = {f"remote/{name}": sum(getattr(usage, name) for usage in usages) for name in COUNTS}
        totals["remote/changed_texts"] = getattr(self._corrector, "changed_texts", 0)
        return totals


def remote_usage(roles: Roles | None) -> list[RemoteUsage]:
    """The usage of remote roles as a metric source; none without remote roles."""
    from rti_exp.engines.remote.engine import RemoteEngine

    if roles is None:
        return []
    parts = (roles.validator, roles.corrector, roles.verifier)
    engines = [part.engine for part in parts if part is not None and isinstance(part.engine, RemoteEngine)]
    return [RemoteUsage(engines, roles.corrector)] if engines else []
