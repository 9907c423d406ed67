"""Settings of the config groups that are more than the numbers of `rti_exp.config.settings`: models, roles, trainer."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from rti_exp.config.settings import (
    CHECK_NAMES,
    RolePrompt,
    RoleSettings,
    SamplingSettings,
    SettingsError,
    VerifierSettings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngineSettings:
    """Memory of `rti_exp.engines.local.LocalEngine`, which says what each means."""

    max_batch: int = 256
    cache_rows: int = 256
    prefill_tokens: int = 4096

    def __post_init__(self) -> None:
        for name in ("max_batch", "cache_rows", "prefill_tokens"):
            if getattr(self, name) < 1:
                raise SettingsError(f"engine.{name}={getattr(self, name)}: must be an integer >= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectorSettings(SamplingSettings):
    """`path` is the model that corrects; null is the policy itself."""

    temperature: float = 1.0
    max_tokens: int = 32
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorSettings(RoleSettings):
    """`policy` is the path of the model that judges, as policy.path; null is the policy itself."""

    max_tokens: int = 32
    policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierNode(RoleSettings):
    """The verifier's group: which checks, and how the policy is asked."""

    policy: bool | str = True
    """Whether a model is asked: true is the policy itself, a text is the path of another one, as policy.path."""
    rule: bool = False
    checks: list[str] = field(default_factory=lambda: list(CHECK_NAMES))

    def __post_init__(self) -> None:
        RoleSettings.__post_init__(self)  # no super(): a dataclass with slots is another class than its body's
        VerifierSettings(policy=bool(self.policy), rule=self.rule, checks=self.checks)
        if isinstance(self.policy, str) and not self.policy.strip():
            raise SettingsError("policy='': must be true, false, or the path of a model")
        if self.steps_per_call != RoleSettings.__dataclass_fields__["steps_per_call"].default:
            raise SettingsError(
                f"steps_per_call={self.steps_per_call}: must be left out, the verifier asks all checks in one call; "
                "validator.steps_per_call is the one that does something"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """The roles' requests; {evidence} and {reason} are filled in."""

    validator: RolePrompt = field(default_factory=RolePrompt)
    corrector: RolePrompt = field(default_factory=RolePrompt)
    verifier: dict[str, RolePrompt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    every: int = 8
    """Iterations between two recordings of sampled groups; 0 records none."""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise SettingsError(f"recorder.every={self.every}: must be an integer >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    tokens: float = math.inf
    """Tokens generated and scored, roles and teachers included, after which training ends."""
    accepted: float = math.inf
    """Accepted corrections, after which training goes on without interventions."""

    def __post_init__(self) -> None:
        for name in ("tokens", "accepted"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"budget.{name}={getattr(self, name)}: must be a number > 0, or inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """What is too much of an infrastructure that fails: above it the run fails, rather than train on what is left."""

    env_failures: float = 0.5
    """Share of the rollouts of an iteration or an evaluation that may be infrastructure failures."""
    role_failures: float = 0.9
    """Share of an iteration's attempts that may end without a usable answer of a role: no_verdict, no_correction,
    no_check, role_failed. Attempts of an engine that is down (role_unavailable) are not counted. 1: any."""

    def __post_init__(self) -> None:
        for name in ("env_failures", "role_failures"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"limits.{name}={getattr(self, name)}: must be in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """The fixed probe (`rti_exp.training.probe`)."""

    every: int = 8
    """Probe after every so many iterations, and before the first and after the last; 0: only those two."""
    cases: int = 8
    """Corrections per family."""
    seed: int = 0
    """Draws the cases; not the run's, so that all runs are asked the same."""

    def __post_init__(self) -> None:
        for name in ("every", "seed"):
            if getattr(self, name) < 0:
                raise SettingsError(f"probe.{name}={getattr(self, name)}: must be an integer >= 0")
        if self.cases < 1:
            raise SettingsError(f"probe.cases={self.cases}: must be an integer >= 1")


STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false", "fsdp")
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What Lightning's Trainer is made of."""

    accelerator: str = "cpu"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    """One of `STRATEGIES`: each process holds whole weights, which its engine generates with. fsdp (FSDP2) shards what
    is trained besides: weights, gradients and optimizer state."""
    precision: str = "32-true"
    """One of `PRECISIONS`. fp16 is not among them: its gradients are scaled when the learner clips them."""
    threads: int = 1
    """CPU threads of torch in each process; one, so that figures do not depend on the machine's cores."""
    deterministic: bool = True

    def __post_init__(self) -> None:
        for name in ("devices", "num_nodes", "threads"):
            if getattr(self, name) < 1:
                raise SettingsError(f"trainer.{name}={getattr(self, name)}: must be an integer >= 1")
        if self.strategy not in STRATEGIES:
            raise SettingsError(
                f"trainer.strategy={self.strategy!r}: must be one of {', '.join(STRATEGIES)}; the engine and the "
                "checkpoints need the whole weights in each process, and Lightning must start it as a new one"
            )
        if self.precision not in PRECISIONS:
            raise SettingsError(f"trainer.precision={self.precision!r}: must be one of {', '.join(PRECISIONS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSettings:
    """The keys that belong to no group and are no numbers of the run itself."""

    study: str | None = None
    runs_root: str = "runs"
    fresh: bool = False
    checkpoint_every: int = 4
    """Iterations between two checkpoints; a kill costs at most as many."""
    size: str = "full"

    def __post_init__(self) -> None:
        if self.study is not None and not re.fullmatch(r"[^\s./\\][^/\\\0\n]{0,119}", self.study):
            raise SettingsError(f"study={self.study!r}: must be a plain folder name of at most 120 characters")
        if not self.runs_root.strip():
            raise SettingsError("runs_root='': must be a folder")
        if self.checkpoint_every < 1:
            raise SettingsError(f"checkpoint_every={self.checkpoint_every}: must be an integer >= 1")

    def study_or(self, default: str) -> str:
        """The study's name; without one, `default` with the size where that is not full.

        A quick look must not overwrite the tables of the whole study. Where sizes are swept they share a study.
        """
        if self.study is not None:
            return self.study
        if self.size == "full" or "size" in default.split("+"):
            return default
        return f"{default}-{re.sub(r'[^A-Za-z0-9_-]', '-', self.size)[:30]}"


def verifier_settings(node: VerifierNode) -> tuple[VerifierSettings, RoleSettings]:
    """The two halves of the verifier's group."""
    checks = [name for name in CHECK_NAMES if name in node.checks]
    return VerifierSettings(policy=bool(node.policy), rule=node.rule, checks=checks), node
