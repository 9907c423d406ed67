"""An engine whose answers are written down beforehand, for tests and demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rti_exp.engines.base import EngineUnavailable, GenerateRequest, ScoreRequest
from rti_exp.types import Completion

Script = Callable[[str, int], str]
"""(prompt as text, seed of the request) -> text of the answer."""
LogProbs = Callable[[tuple[int, ...], tuple[int, ...]], Sequence[float]]
"""(prompt ids, token ids) -> a log-prob for each token."""


class TextCodec(Protocol):
    """What the engine needs of a renderer: `rti_exp.rollout.token_renderer.TokenRenderer` has it."""

    def text(self, ids: Sequence[int]) -> str: ...

    def action_ids(self, text: str) -> tuple[int, ...]: ...


class ScriptedEngine:
    """Answers by a script.

    Args:
        script: a function of the prompt's text (control tokens spelled out) and the request's seed, or a table:
            the longest key that the prompt ends with, not counting the final `<|assistant|>`, gives the answer.
        codec: turns prompts into text and answers into ids.
        log_probs: the same for every token, or a function of prompt and tokens; both for `generate` and `score`.

    Set `available` to False to have every call raise `EngineUnavailable`. `generate_requests` and
    `score_requests` hold what was asked, in order; `synced` the policy versions.
    """

    def __init__(
        self, script: Script | Mapping[str, str], codec: TextCodec, *, log_probs: float | LogProbs = -0.5
    ) -> None:
        self._script = script
        self._codec = codec
        self._log_probs = log_probs
        self.available = True
        self.policy_version = 0
        self.generated_tokens = 0
        self.scored_tokens = 0
        self.generate_requests: list[GenerateRequest] = []
        self.score_requests: list[ScoreRequest] = []
        self.synced: list[int] = []

    def _check_available(self) -> None:
        if not self.available:
            raise EngineUnavailable("the scripted engine was switched off")

    def _answer(self, prompt: str, seed: int) -> str:
        if callable(self._script):
            return self._script(prompt, seed)
        asked = prompt.removesuffix("<|assistant|>")
        keys = [key for key in self._script if asked.endswith(key) or prompt.endswith(key)]
        if not keys:
            raise KeyError(f"the script has no answer to {prompt!r}")
        return self._script[max(keys, key=len)]

    def _token_log_probs(self, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> tuple[float, ...]:
        if callable(self._log_probs):
            return tuple(self._log_probs(prompt_ids, token_ids))
        return (self._log_probs,) * len(token_ids)

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """The script's answers, cut to `max_tokens` (stop reason "length" if that cuts the end off)."""
        self._check_available()
        self.generate_requests += requests
        completions = [self._complete(request) for request in requests]
        self.generated_tokens += sum(len(completion.token_ids) for completion in completions)
        return completions

    def _complete(self, request: GenerateRequest) -> Completion:
        answer = self._codec.action_ids(self._answer(self._codec.text(request.prompt_ids), request.seed))
        token_ids = answer[: request.sampling.max_tokens]
        return Completion(
            token_ids=token_ids,
            log_probs=self._token_log_probs(request.prompt_ids, token_ids),
            stop_reason="stop" if token_ids[-1] in request.sampling.stop_ids else "length",
            policy_version=self.policy_version,
        )

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        self._check_available()
        self.score_requests += requests
        self.scored_tokens += sum(len(request.token_ids) for request in requests)
        return [self._token_log_probs(request.prompt_ids, request.token_ids) for request in requests]

    def sync(self, policy_version: int) -> None:
        self._check_available()
        self.policy_version = policy_version
        self.synced.append(policy_version)
