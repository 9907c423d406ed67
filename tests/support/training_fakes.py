"""A whole learner on the small world, for tests of training.

`acted(...)` is played by a script (every group of boxes c and d fails, boxes a and b succeed now and then; roles
answer well), but all log-probs are the model's: updates are real and interventions happen. `sampled(...)` samples
from the model itself in `CoinWorld`, where about half of all episodes succeed.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from transformers import PreTrainedModel

from rti_exp.config.defaults import default_settings
from rti_exp.config.job_settings import BudgetSettings, LimitSettings
from rti_exp.config.role_settings import JudgeSettings, RolePrompt, VerifierSettings
from rti_exp.config.settings import (
    AlgorithmSettings,
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RolloutSettings,
    RunSettings,
)
from rti_exp.engines.base import Engine
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.envs.base import Environment, StepResult
from rti_exp.experiment.parts import default_engine
from rti_exp.intervention.corrector import SelfCorrector
from rti_exp.intervention.gate import PerplexityGate
from rti_exp.intervention.pipeline import Interventions, Roles
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier
from rti_exp.objective.algorithm import Algorithm
from rti_exp.objective.grpo import GRPO
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.training.fsdp import whole_tensor
from rti_exp.training.group_rollouts import GroupRollouts
from rti_exp.training.learner import RTIModule
from rti_exp.training.learner_settings import LearnerSettings
from rti_exp.training.tasks import TaskDataModule
from rti_exp.types import Evidence, EvidenceLevel, Group, Message, Task
from tests.support.fakes import GuessWorld, call, right_texts, tiny_model, tiny_tokenizer, wrong_texts

ROLLOUT = default_settings(RolloutSettings, max_tokens=80, max_context=1200)
ROLE = default_settings(JudgeSettings, max_tokens=80)
RUN = default_settings(RunSettings, seed=3, max_iterations=1, tasks_per_iteration=4, group_size=4)
ALGORITHM = default_settings(AlgorithmSettings, learning_rate=1e-3, micro_batch_tokens=1024)
RENDERER = TokenRenderer(tiny_tokenizer())


class CoinEpisode:
    """Two turns of any text; succeeds if a hash of both is even."""

    tools: Sequence[Mapping[str, Any]] = ()

    def __init__(self, task: Task) -> None:
        self.task = task
        self.said: list[str] = []

    @property
    def messages(self) -> Sequence[Message]:
        return (Message(role="user", content=self.task.payload["text"]),)

    def step(self, message: Message) -> StepResult:
        self.said.append(message.content)
        if len(self.said) == 1:
            return StepResult(observations=(Message(role="tool", content="go on"),), done=False)
        reward = float(hashlib.sha256("|".join(self.said).encode()).digest()[0] % 2)
        return StepResult(observations=(), done=True, reward=reward)

    def evidence(self, level: EvidenceLevel) -> Evidence:
        return Evidence(level=level)

    def state_hash(self) -> str:
        return "|".join(self.said)

    def fork(self, messages: Sequence[Message]) -> CoinEpisode:
        episode = CoinEpisode(self.task)
        for message in messages:
            episode.step(message)
        return episode


class CoinWorld:
    max_turns = 2

    def tasks(self, split: str) -> Sequence[Task]:
        return tuple(
            Task(id=f"{split}_{number}", family=f"family_{number % 2}", split=split, payload={"text": f"coin {number}"})
            for number in range(6)
        )

    def start(self, task: Task) -> CoinEpisode:
        return CoinEpisode(task)


class ModelLogProbs:
    """Log-probs of a plain forward pass over prompt and tokens, one sequence at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    @torch.no_grad()
    def __call__(self, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> list[float]:
        ids_BT = torch.tensor([prompt_ids + token_ids])
        log_probs_TV = self.model(input_ids=ids_BT, use_cache=False).logits[0].log_softmax(dim=-1)
        first = len(prompt_ids) - 1
        return [log_probs_TV[first + place, token].item() for place, token in enumerate(token_ids)]


def act(prompt: str, seed: int) -> str:
    """The scripted policy in `GuessWorld`, and all of its roles."""
    task = next(one for one in GuessWorld().tasks("train") if f"box {one.payload['box']}<" in prompt)
    asked = prompt.rpartition("<|system|>")[2] if "<|system|>" in prompt else ""
    if asked.startswith("judge"):
        harmful = call("take", key=task.payload["key"]) not in prompt and '"take"' in prompt.split("<|assistant|>")[-2]
        return '{"harmful": true, "reason": "the wrong key"}' if harmful else '{"harmful": false}'
    if asked.startswith("rewrite"):
        return right_texts(task)[0]
    if asked:
        return '{"pass": true}'
    last = prompt.removesuffix("<|end|><|assistant|>").rpartition("<|tool|>")[2]
    if last.startswith("took"):
        return call("open")
    if '"take"' in prompt:
        return last.removeprefix("code ")
    if task.payload["box"] == "c" and '"take"' not in prompt and "stuck" not in prompt:
        return call("open")
    lucky = task.payload["box"] in "ab" and seed % 3 == 0
    return right_texts(task)[0] if lucky else wrong_texts(task)[0]


def acted(
    *,
    run: RunSettings = RUN,
    settings: Any = ALGORITHM,
    corrector: bool = True,
    intervene: bool = True,
    gate: GateSettings | None = None,
    reweight: ReweightSettings | None = None,
    intervention: InterventionSettings | None = None,
    model: PreTrainedModel | None = None,
    success_threshold: float = 1.0,
    module_class: type[RTIModule] = RTIModule,
    algorithm: Algorithm | None = None,
    reference: PreTrainedModel | None = None,
    **limits: Any,
) -> RTIModule:
    """`intervene` False is a learner that was given no interventions at all: plain GRPO.

    `settings` are GRPO's unless an `algorithm` is given; `limits` as in `learner_settings`.
    """
    model = tiny_model(sharpen=2.0) if model is None else model
    engine = ScriptedEngine(act, RENDERER, log_probs=ModelLogProbs(model))
    world = GuessWorld()
    collector = Collector(environment=world, engine=engine, renderer=RENDERER, settings=ROLLOUT, seed=run.seed)
    prompts = {"gold": "gold? {evidence}", "leak": "leak? {evidence}", "plausible": "plausible?"}
    interventions = Interventions(
        collector=collector,
        roles=Roles(
            validator=Validator(
                engine=engine,
                renderer=RENDERER,
                prompt=RolePrompt(role="system", text="judge: {evidence}"),
                settings=ROLE,
            ),
            corrector=SelfCorrector(
                engine=engine,
                renderer=RENDERER,
                prompt=RolePrompt(role="system", text="rewrite: {evidence} | {reason}"),
                settings=ROLE,
            )
            if corrector
            else None,
            verifier=Verifier(
                engine=engine,
                renderer=RENDERER,
                prompts={name: RolePrompt(role="system", text=text) for name, text in prompts.items()},
                settings=default_settings(VerifierSettings, max_tokens=80),
            ),
            gate=PerplexityGate(gate or default_settings(GateSettings, delta=float("inf"))),
        ),
        reweight=reweight or default_settings(ReweightSettings),
        settings=intervention or default_settings(InterventionSettings, corrections=1),
    )
    return module_class(
        model=model,
        engine=engine,
        rollouts=GroupRollouts(collector=collector, engine=engine, group_size=run.group_size),
        interventions=interventions if intervene else None,
        algorithm=algorithm or GRPO(settings),
        settings=learner_settings(run, settings, success_threshold=success_threshold, **limits),
        reference=reference,
    )


def learner_settings(run: RunSettings, update: Any, **limits: Any) -> LearnerSettings:
    """`limits` are those of `LearnerSettings`, and the budgets by name: `tokens`, `accepted`."""
    budget = default_settings(
        BudgetSettings, **{name: limits.pop(name) for name in ("tokens", "accepted") if name in limits}
    )
    defaults = {"temperature": 1.0, "success_threshold": 1.0, "limits": default_settings(LimitSettings)}
    return LearnerSettings(run=run, update=update, budget=budget, **{**defaults, **limits})


def sampled(
    *,
    run: RunSettings = RUN,
    settings: Any = ALGORITHM,
    world: Environment | None = None,
    model: PreTrainedModel | None = None,
    algorithm: Algorithm | None = None,
    reference: PreTrainedModel | None = None,
    **limits: Any,
) -> RTIModule:
    """`settings` are GRPO's unless an `algorithm` is given; `limits` as in `learner_settings`."""
    model = tiny_model(sharpen=2.0) if model is None else model
    engine: Engine = default_engine(model)
    collector = Collector(
        environment=world or CoinWorld(),
        engine=engine,
        renderer=RENDERER,
        settings=default_settings(RolloutSettings, max_tokens=6, max_context=200),
        seed=run.seed,
    )
    return RTIModule(
        model=model,
        engine=engine,
        rollouts=GroupRollouts(collector=collector, engine=engine, group_size=run.group_size),
        interventions=None,
        algorithm=algorithm or GRPO(settings),
        settings=learner_settings(run, settings, **limits),
        reference=reference,
    )


def make_trainer(callbacks: Sequence[Callback] = (), **kwargs: Any) -> Trainer:
    options: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
        "callbacks": list(callbacks),
    }
    return Trainer(**{**options, **kwargs})


def fit(
    module: RTIModule, callbacks: Sequence[Callback] = (), *, tasks: Sequence[Task] | None = None, **kwargs: Any
) -> RTIModule:
    """Runs `module.settings.run.max_iterations` iterations, or what is left of them after a checkpoint."""
    environment: Any = getattr(module.rollouts.collector, "environment", None)
    train = environment.tasks("train") if tasks is None else tasks
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_trainer(callbacks, **kwargs).fit(module, datamodule=TaskDataModule(tasks=train, run=module.settings.run))
    return module


def groups_of(module: RTIModule) -> Sequence[Group]:
    """The groups of the last iteration."""
    assert module.last_iteration is not None
    return module.last_iteration.groups


def weights(module: RTIModule) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.model.state_dict().items()}


def equal_weights(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class GradientKeeper(torch.optim.Optimizer):
    """Keeps the gradients of each step, and changes nothing."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.kept: list[list[torch.Tensor]] = []

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if closure is not None:
            closure()
        self.kept.append([whole_tensor(one.grad).clone() for one in self.param_groups[0]["params"]])


class KeepingModule(RTIModule):
    """A learner whose optimizer is a `GradientKeeper`."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.keeper = GradientKeeper(list(self.model.parameters()))
        return self.keeper


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
