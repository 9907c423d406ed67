"""A remote model as an engine: for the roles, which ask in ids."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rti_exp.engines.base import EngineUnavailable, EngineUnusable, GenerateRequest, RequestsLost, ScoreRequest
from rti_exp.engines.remote.client import ChatModel, ChatRequest, Reply
from rti_exp.engines.remote.failures import RemoteFailure
from rti_exp.engines.remote.transcript import END, Transcript, messages_of
from rti_exp.types import Completion


class RemoteEngine:
    """Continues prompts of `Transcript` by asking `model`; all requests of a call at once.

    It gives no log-probs: those of its completions are NaN, and nothing can be scored. `max_tokens` of a request are
    the endpoint's tokens, not ids; `generated_tokens` are those that it reported.
    """

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        self.generated_tokens = 0
        self.scored_tokens = 0
        self._transcript = Transcript()

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """
        Raises:
            RequestsLost: some requests got no answer.
            EngineUnavailable: none did.
            EngineUnusable: the job must end (`ChatModel.reply`).
        """
        replies = self.model.replies([_chat(request) for request in requests])
        answered = {index: self._completion(one) for index, one in enumerate(replies) if isinstance(one, Reply)}
        reasons = {index: str(one) for index, one in enumerate(replies) if isinstance(one, RemoteFailure)}
        if reasons and not answered:
            raise EngineUnavailable("; ".join(dict.fromkeys(reasons.values())))
        if reasons:
            raise RequestsLost(answered, reasons)
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
            f"{self.model.settings.model} is remote: it gives no log-probs of given tokens; "
            "reweight.scorer must be policy or off"
        )

    def sync(self, policy_version: int) -> None:
        """A remote model's weights are not ours to change."""


def _chat(request: GenerateRequest) -> ChatRequest:
    if END not in request.sampling.stop_ids:
        raise ValueError("a remote model's prompts are rendered by Transcript")
    return ChatRequest(
        messages=messages_of(request.prompt_ids),
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        max_tokens=request.sampling.max_tokens,
        seed=request.seed,
    )
