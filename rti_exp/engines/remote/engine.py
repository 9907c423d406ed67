"""A remote model as an engine, for the roles, which ask in token ids."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rti_exp.engines.base import EngineUnavailable, EngineUnusable, GenerateRequest, RequestsFailed, ScoreRequest
from rti_exp.engines.remote.chat_model import ChatModel, ChatRequest
from rti_exp.engines.remote.failures import Cause, RemoteFailure
from rti_exp.engines.remote.messages import Reply
from rti_exp.engines.remote.transcript import END, Transcript, messages_of
from rti_exp.types import Completion, Failure, FailureKind


class RemoteEngine:
    """Continues prompts of `Transcript` by asking `model`, all requests of a call concurrently.

    An endpoint gives no log-probs: those of the completions are NaN, and nothing can be scored. A request's
    `max_tokens` are the endpoint's tokens, not ids; `generated_tokens` counts the tokens that the endpoint reported.
    """

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        self.generated_tokens = 0
        self.scored_tokens = 0
        self._transcript = Transcript()

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """
        Raises:
            RequestsFailed: some requests got no answer.
            EngineUnavailable: no request got an answer, and none was too long.
            EngineUnusable: the job must end (see `ChatModel.reply`).
        """
        replies = self.model.replies([_chat(request) for request in requests])
        answered = {index: self._completion(reply) for index, reply in enumerate(replies) if isinstance(reply, Reply)}
        failures = {index: _lost(reply) for index, reply in enumerate(replies) if isinstance(reply, RemoteFailure)}
        down = all(failure.kind is FailureKind.UNAVAILABLE for failure in failures.values())
        if failures and not answered and down:
            raise EngineUnavailable("; ".join(dict.fromkeys(failure.reason for failure in failures.values())))
        if failures:
            raise RequestsFailed(failures, answered)
        return [answered[index] for index in range(len(requests))]

    def _completion(self, reply: Reply) -> Completion:
        self.generated_tokens += reply.completion_tokens or 0
        ids = self._transcript.action_ids(reply.message.content)
        if reply.stop_reason == "length":
            ids = ids[:-1]
        return Completion(
            token_ids=ids, log_probs=(math.nan,) * len(ids), stop_reason=reply.stop_reason, policy_version=0
        )

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """
        Raises:
            EngineUnusable: always.
        """
        raise EngineUnusable(
            f"{self.model.settings.model} is remote and gives no log-probs of given tokens; "
            "reweight.scorer must be policy or off"
        )

    def sync(self, policy_version: int) -> None:
        """Does nothing: a remote model's weights do not change."""


def _lost(failure: RemoteFailure) -> Failure:
    kind = FailureKind.TOO_LONG if failure.cause is Cause.TOO_LONG else FailureKind.UNAVAILABLE
    return Failure(kind=kind, reason=str(failure))


def _chat(request: GenerateRequest) -> ChatRequest:
    if END not in request.sampling.stop_ids:
        raise ValueError("the prompts of a remote model must be rendered by Transcript")
    return ChatRequest(
        messages=messages_of(request.prompt_ids),
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        max_tokens=request.sampling.max_tokens,
        seed=request.seed,
    )
