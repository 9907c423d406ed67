"""How well models play their roles on held-out failures: accuracies, the corrector's mix, perplexities."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rti_exp.config.role_settings import PromptSettings
from rti_exp.engines.base import Engine, GenerateRequest, Sampling, ScoreRequest
from rti_exp.engines.model_text import verdict_text
from rti_exp.envs.town.families import FAMILIES
from rti_exp.objective.perplexity import log_perplexity
from rti_exp.pretraining.corpus import (
    Document,
    corrector_document,
    rollout_prompt,
    validator_document,
    verifier_document,
)
from rti_exp.pretraining.corrections import (
    CHECKS,
    MANNERS_BY_CHECK,
    Manner,
    correction,
    leak_possible,
    manner_of,
    should_pass,
)
from rti_exp.pretraining.demonstrations import Demonstration, failed_demonstration, plan_of
from rti_exp.pretraining.recipe import default_prior
from rti_exp.randomness import derive_seed
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Message

MANNERS: tuple[Manner, ...] = ("clean", "leaky", "wordy", "formal", "wrong")
"""The manners that corrections are counted by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `value` is a share in [0, 1] or a perplexity, over `count` cases."""

    quantity: str
    case: str
    value: float
    count: int


def held_out_failures(seed: int, per_family: int) -> tuple[list[Demonstration], random.Random]:
    """`per_family` failed demonstrations of every family, and the generator that drew them."""
    rng = random.Random(derive_seed(seed, "probe"))
    by_family: dict[str, list[Demonstration]] = {name: [] for name in FAMILIES}
    while any(len(failures) < per_family for failures in by_family.values()):
        demonstration = failed_demonstration(rng, default_prior(), late=0.25, split="heldout")
        failures = by_family[demonstration.task.family]
        if len(failures) < per_family:
            failures.append(demonstration)
    return [demonstration for failures in by_family.values() for demonstration in failures], rng


class RoleAccuracy:
    """Asks engines the roles' questions about held-out failures.

    Args:
        engine: Plays the validator and the verifier, and scores corrections.
        corrector: Writes the corrections.
        per_family: Failures of each family.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        corrector: Engine,
        renderer: Renderer,
        prompts: PromptSettings,
        seed: int,
        per_family: int,
        max_tokens: int = 32,
    ) -> None:
        self._engine, self._corrector, self._renderer = engine, corrector, renderer
        self._prompts, self._seed, self._max_tokens = prompts, seed, max_tokens
        self._failures, self._rng = held_out_failures(seed, per_family)

    def rows(self) -> list[Row]:
        return [*self.validator(), *self.verifier(), *self.corrector(), *self.right_steps()]

    def validator(self) -> list[Row]:
        """Share of steps that the validator judges right, for harmless and harmful steps."""
        documents: list[Document] = []
        cases: list[str] = []
        for failure in self._failures:
            for step in range(failure.first_harmful + 1):
                documents.append(validator_document(self._renderer, self._prompts, failure, step))
                cases.append("harmful" if step == failure.first_harmful else "harmless")
        verdicts = [_field(answer, "harmful") for answer in self._answers(documents)]
        right = [verdict is (case == "harmful") for verdict, case in zip(verdicts, cases, strict=True)]
        return _shares("validator right", cases, right)

    def verifier(self) -> list[Row]:
        """Share of corrections that pass, by check and by manner."""
        documents: list[Document] = []
        cases: list[str] = []
        for failure in self._failures:
            for check in CHECKS:
                for manner in dict.fromkeys(MANNERS_BY_CHECK[check]):
                    if manner == "leaky" and not leak_possible(failure):
                        continue
                    text = correction(failure, manner, self._rng)
                    passed = should_pass(check, manner, failure)
                    documents.append(verifier_document(self._renderer, self._prompts, failure, text, check, passed))
                    cases.append(f"{check}: {manner}")
        return _shares("verifier passes", cases, [_field(text, "pass") is True for text in self._answers(documents)])

    def corrector(self) -> list[Row]:
        """The manners of the corrector's texts at temperature 1, and their perplexity under the rollout prompt."""
        documents = [corrector_document(self._renderer, self._prompts, failure, "") for failure in self._failures]
        completions = self._corrector.generate(self._requests(documents, temperature=1.0))
        texts = [_action_text(self._renderer.message(completion.token_ids)) for completion in completions]
        manners = [manner_of(failure, text) for failure, text in zip(self._failures, texts, strict=True)]
        perplexities = self._perplexities([completion.token_ids for completion in completions])
        by_case: dict[str, list[float]] = defaultdict(list)
        for failure, manner, perplexity in zip(self._failures, manners, perplexities, strict=True):
            by_case[manner].append(perplexity)
            if manner == "clean":
                by_case[f"clean, {failure.task.family}"].append(perplexity)
        unseen = [manner for failure, manner in zip(self._failures, manners, strict=True) if leak_possible(failure)]
        rows = [
            Row(quantity=quantity, case=manner, value=written.count(manner) / len(written), count=len(written))
            for quantity, written in (("corrector writes", manners), ("corrector writes, goal unseen", unseen))
            for manner in MANNERS
        ]
        for case, values in sorted(by_case.items()):
            median, count = statistics.median(values), len(values)
            within = sum(value <= 5 for value in values) / count
            rows.append(Row(quantity="perplexity, median", case=case, value=median, count=count))
            rows.append(Row(quantity="perplexity <= 5", case=case, value=within, count=count))
        return rows

    def right_steps(self) -> list[Row]:
        """The policy's mean probability of the right action at the critical step, by family."""
        failures = [failure for failure in self._failures if _follows_the_habit(failure)]
        scores = []
        for failure in failures:
            plan = plan_of(failure.task)
            action_ids = self._renderer.action_ids(plan.actions[plan.critical_step])
            scores.append(ScoreRequest(prompt_ids=self._prompt(failure), token_ids=action_ids))
        by_family: dict[str, list[float]] = defaultdict(list)
        for failure, log_probs in zip(failures, self._engine.score(scores), strict=True):
            by_family[failure.task.family].append(math.exp(sum(log_probs)))
        return [
            Row(quantity="takes the right step", case=family, value=statistics.fmean(values), count=len(values))
            for family, values in sorted(by_family.items())
        ]

    def _prompt(self, failure: Demonstration) -> tuple[int, ...]:
        return rollout_prompt(self._renderer, failure, failure.first_harmful)

    def _perplexities(self, corrections: Sequence[tuple[int, ...]]) -> list[float]:
        requests = [
            ScoreRequest(prompt_ids=self._prompt(failure), token_ids=token_ids)
            for failure, token_ids in zip(self._failures, corrections, strict=True)
        ]
        return [math.exp(log_perplexity(log_probs)) for log_probs in self._engine.score(requests)]

    def _requests(self, documents: Sequence[Document], temperature: float) -> list[GenerateRequest]:
        sampling = Sampling(temperature=temperature, max_tokens=self._max_tokens, stop_ids=self._renderer.stop_ids)
        return [
            GenerateRequest(
                prompt_ids=document.prompt_ids, sampling=sampling, seed=derive_seed(self._seed, "probe", index)
            )
            for index, document in enumerate(documents)
        ]

    def _answers(self, documents: Sequence[Document]) -> list[str]:
        completions = self._engine.generate(self._requests(documents, temperature=0.0))
        return [self._renderer.message(completion.token_ids).content for completion in completions]


def _follows_the_habit(failure: Demonstration) -> bool:
    plan = plan_of(failure.task)
    step = failure.steps[failure.first_harmful]
    return step.place == plan.critical_step and step.reason == plan.misstep.reason


def _action_text(message: Message) -> str:
    """The turn as the town's plans write it: a tool call is bare JSON in every model's format."""
    if message.content.startswith("{") or len(message.tool_calls) != 1:
        return message.content
    call = message.tool_calls[0]
    return json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)


def _field(answer: str, name: str) -> object:
    try:
        value = json.loads(verdict_text(answer), strict=False)
    except ValueError:
        return None
    return value.get(name) if isinstance(value, Mapping) else None


def _shares(quantity: str, cases: Sequence[str], hits: Sequence[bool]) -> list[Row]:
    counts = Counter(cases)
    hit_counts = Counter(case for case, hit in zip(cases, hits, strict=True) if hit)
    return [Row(quantity=quantity, case=case, value=hit_counts[case] / n, count=n) for case, n in counts.items()]
