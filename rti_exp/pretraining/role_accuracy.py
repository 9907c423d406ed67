"""How well the embedded models play their roles, on held-out plays: accuracies, the corrector's mix, perplexities."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rti_exp.config.check import PromptSettings
from rti_exp.engines.base import Engine, GenerateRequest, Sampling, ScoreRequest
from rti_exp.envs.town.families import FAMILIES
from rti_exp.objective.perplexity import log_perplexity
from rti_exp.pretraining.behaviour import FORMAL, Play, plan_of
from rti_exp.pretraining.documents import (
    CHECKS,
    MANNERS_BY_CHECK,
    Document,
    Manner,
    correction,
    corrector_document,
    failed_play,
    history_ids,
    leak_possible,
    passes,
    validator_document,
    verifier_document,
)
from rti_exp.pretraining.prior import Prior
from rti_exp.randomness import derive_seed
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Message

MANNERS: tuple[Manner, ...] = ("clean", "leaky", "wordy", "formal", "wrong")
"""What a correction is counted as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: `value` is a share in [0, 1] or a perplexity, over `count` cases."""

    what: str
    case: str
    value: float
    count: int


class Probe:
    """Asks an engine the roles' questions on `plays` failed held-out plays per family."""

    def __init__(
        self,
        *,
        engine: Engine,
        corrector: Engine,
        renderer: Renderer,
        prompts: PromptSettings,
        prior: Prior,
        seed: int,
        plays: int,
        max_tokens: int = 32,
    ) -> None:
        self._max_tokens = max_tokens
        self._engine, self._corrector, self._renderer = engine, corrector, renderer
        self._prompts, self._seed = prompts, seed
        rng = random.Random(derive_seed(seed, "probe"))
        by_family: dict[str, list[Play]] = defaultdict(list)
        while any(len(by_family[name]) < plays for name in FAMILIES):
            played = failed_play(rng, prior, late=0.25, split="heldout")
            if len(by_family[played.task.family]) < plays:
                by_family[played.task.family].append(played)
        self._plays = [played for name in FAMILIES for played in by_family[name]]
        self._rng = rng

    def rows(self) -> list[Row]:
        return [*self.validator(), *self.verifier(), *self.corrector(), *self.habit()]

    def validator(self) -> list[Row]:
        """Share of steps judged right, harmful and harmless ones apart."""
        documents: list[Document] = []
        cases: list[str] = []
        for played in self._plays:
            harmful = _harmful(played)
            for step in range(harmful + 1):
                documents.append(validator_document(self._renderer, self._prompts, played, step))
                cases.append("harmful" if step == harmful else "harmless")
        answers = self._answers(documents, temperature=0.0)
        right = [_field(answer, "harmful") is (case == "harmful") for answer, case in zip(answers, cases, strict=True)]
        return _shares("validator right", cases, right)

    def verifier(self) -> list[Row]:
        """Share of corrections that pass, by check and by the correction's manner."""
        documents: list[Document] = []
        cases: list[str] = []
        for played in self._plays:
            for check in CHECKS:
                for manner in dict.fromkeys(MANNERS_BY_CHECK[check]):
                    if manner == "leaky" and not leak_possible(played, _harmful(played)):
                        continue
                    text = correction(played, manner, self._rng)
                    passed = passes(check, manner, played)
                    documents.append(verifier_document(self._renderer, self._prompts, played, text, check, passed))
                    cases.append(f"{check}: {manner}")
        answers = self._answers(documents, temperature=0.0)
        return _shares("verifier passes", cases, [_field(answer, "pass") is True for answer in answers])

    def corrector(self) -> list[Row]:
        """What the corrector writes at temperature 1, by manner, and its perplexity under the rollout prompt."""
        documents = [corrector_document(self._renderer, self._prompts, played, "") for played in self._plays]
        completions = self._corrector.generate(self._requests(documents, temperature=1.0))
        texts = [_action(self._renderer.message(completion.token_ids)) for completion in completions]
        manners = [manner_of(played, text) for played, text in zip(self._plays, texts, strict=True)]
        scores = [
            ScoreRequest(prompt_ids=self._history(played), token_ids=completion.token_ids)
            for played, completion in zip(self._plays, completions, strict=True)
        ]
        perplexities = [math.exp(log_perplexity(row)) for row in self._engine.score(scores)]
        by_case: dict[str, list[float]] = defaultdict(list)
        for played, manner, perplexity in zip(self._plays, manners, perplexities, strict=True):
            by_case[manner].append(perplexity)
            if manner == "clean":
                by_case[f"clean, {played.task.family}"].append(perplexity)
        tempted = [
            manner
            for played, manner in zip(self._plays, manners, strict=True)
            if leak_possible(played, _harmful(played))
        ]
        rows = [
            Row(what=what, case=manner, value=found.count(manner) / len(found), count=len(found))
            for what, found in (("corrector writes", manners), ("corrector writes, goal unseen", tempted))
            for manner in MANNERS
        ]
        for case, values in sorted(by_case.items()):
            within = sum(value <= 5 for value in values) / len(values)
            rows.append(Row(what="perplexity, median", case=case, value=statistics.median(values), count=len(values)))
            rows.append(Row(what="perplexity <= 5", case=case, value=within, count=len(values)))
        return rows

    def habit(self) -> list[Row]:
        """How likely the policy takes the right step where it parts from the habit: mean probability by family."""
        plays = [played for played in self._plays if _at_critical_step(played)]
        actions = [plan_of(played.task).actions[plan_of(played.task).critical_step] for played in plays]
        scores = [
            ScoreRequest(prompt_ids=self._history(played), token_ids=self._renderer.action_ids(action))
            for played, action in zip(plays, actions, strict=True)
        ]
        by_family: dict[str, list[float]] = defaultdict(list)
        for played, log_probs in zip(plays, self._engine.score(scores), strict=True):
            by_family[played.task.family].append(math.exp(sum(log_probs)))
        return [
            Row(what="takes the right step", case=family, value=statistics.fmean(values), count=len(values))
            for family, values in sorted(by_family.items())
        ]

    def _history(self, played: Play) -> tuple[int, ...]:
        return history_ids(self._renderer, played, _harmful(played))

    def _requests(self, documents: Sequence[Document], temperature: float) -> list[GenerateRequest]:
        sampling = Sampling(temperature=temperature, max_tokens=self._max_tokens, stop_ids=self._renderer.stop_ids)
        return [
            GenerateRequest(
                prompt_ids=document.token_ids[: document.trained.index(True)],
                sampling=sampling,
                seed=derive_seed(self._seed, "probe", index),
            )
            for index, document in enumerate(documents)
        ]

    def _answers(self, documents: Sequence[Document], temperature: float) -> list[str]:
        completions = self._engine.generate(self._requests(documents, temperature))
        return [self._renderer.message(completion.token_ids).content for completion in completions]


def _harmful(played: Play) -> int:
    step = played.first_harmful
    assert step is not None, "probes are failed plays"
    return step


def _at_critical_step(played: Play) -> bool:
    plan = plan_of(played.task)
    step = played.steps[_harmful(played)]
    return step.place == plan.critical_step and step.reason == plan.misstep.reason


def manner_of(played: Play, text: str) -> Manner:
    """Which manner of correction a text is, by comparison with what each manner would write."""
    step = _harmful(played)
    plan = plan_of(played.task)
    right = plan.actions[played.steps[step].place]
    if text == right:
        return "clean"
    if text == plan.shortcut and leak_possible(played, step):
        return "leaky"
    core = _without_note(text)
    if core == _without_note(right):
        return "formal" if any(word in FORMAL for word in text.replace('"', " ").replace(".", " ").split()) else "wordy"
    return "wrong"


def _action(message: Message) -> str:
    """A turn as the town's plans write it: one call as bare JSON, whatever the model's spelling."""
    if message.content.startswith("{") or len(message.tool_calls) != 1:
        return message.content
    call = message.tool_calls[0]
    return json.dumps({"name": call.name, "arguments": dict(call.arguments)})


def _without_note(text: str) -> str:
    if text.startswith("{"):
        return text.split('", "note"')[0].split('"note"')[0].removesuffix('"}}').removesuffix("}}")
    return text.split(",")[0].removesuffix(".")


def _field(answer: str, name: str) -> object:
    try:
        value = json.loads(answer)
    except ValueError:
        return None
    return value.get(name) if isinstance(value, Mapping) else None


def _shares(what: str, cases: Sequence[str], hits: Sequence[bool]) -> list[Row]:
    totals: Counter[str] = Counter(cases)
    good: Counter[str] = Counter(case for case, hit in zip(cases, hits, strict=True) if hit)
    return [Row(what=what, case=case, value=good[case] / total, count=total) for case, total in totals.items()]
