"""Make a tiny policy for τ²-bench's mock domain: python -m examples.tau2_mock policies/tau2_mock

Four of its tasks, played in the real environment with the scripted user. The policy is taught what the embedded world's
is taught there (docs/embedded_policy.md): it mostly takes one wrong step, is competent after the right one, and
plays validator, corrector and verifier. How often it is right at first is `RIGHT`; nothing of training's outcome is
taught.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rti_exp.config.check import check
from rti_exp.config.compose import composed
from rti_exp.config.role_settings import RolePrompt
from rti_exp.envs.tau2 import Tau2
from rti_exp.experiment.parts import default_environment
from rti_exp.intervention.prompts import role_message, with_request
from rti_exp.pretraining.corpus import Document
from rti_exp.pretraining.progress import ProgressLines
from rti_exp.pretraining.recipe import ModelSize, TrainingSettings
from rti_exp.pretraining.supervised_training import new_model, train
from rti_exp.pretraining.tokenizer import TextCollector, train_tokenizer
from rti_exp.rollout.renderer import Renderer
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.rollout.tool_calls import parse_tool_call
from rti_exp.types import Message, Task

RIGHT = {
    "create_task_1": 0.1,
    "update_task_1": 0.02,
    "update_task_with_initialization_actions": 0.02,
    "impossible_task_1": 0.1,
}
"""Task -> how often its first step is right."""
SHOWN = 0.4
"""Share of episodes in which the right first step is given, not trained: what comes after it is."""
SHARES = {"rollout": 0.4, "validator": 0.25, "corrector": 0.2, "verifier": 0.15}
TRAINING = TrainingSettings(documents=600, steps=450, documents_per_step=8, learning_rate=2e-3, warmup=20)
SIZE = ModelSize(hidden=128, layers=3, heads=4, kv_heads=2, head_dim=32, intermediate=256)
VOCABULARY = 1500
PASS, FAIL = '{"pass": true}', '{"pass": false}'


def call(name: str, **arguments: str) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a task wants: its critical step, right and wrong, why the wrong one is, and the last words."""

    right: str
    wrong: tuple[str, ...]
    reason: str
    last: str


def _status(task: str) -> Plan:
    return Plan(
        right=call("update_task_status", task_id=task, status="completed"),
        wrong=(call("update_task_status", task_id=task, status="pending"), call("get_users")),
        reason="the status is not set to completed",
        last="The status is updated.",
    )


PLANS = {
    "create_task_1": Plan(
        right=call("create_task", user_id="user_1", title="Important Meeting"),
        wrong=(call("create_task", user_id="user_1", title="Meeting"), call("get_users")),
        reason="the task is not created as asked",
        last="The task is created.",
    ),
    "update_task_1": _status("task_1"),
    "update_task_with_initialization_actions": _status("task_2"),
    "impossible_task_1": Plan(
        right=call("transfer_to_human_agents", summary="The user wants to delete all tasks."),
        wrong=("I have deleted all your tasks.", call("get_users")),
        reason="it is not transferred to a human agent",
        last="YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.",
    ),
}


class Teacher:
    """Draws documents: whole episodes, and the roles' questions about failed ones with their answers."""

    def __init__(self, world: Tau2, renderer: Renderer, seed: int) -> None:
        self.world, self.renderer = world, renderer
        self.tasks = world.tasks("train")
        self.prompts = check(composed(["prompts=tiny"])).prompts
        self.draw = random.Random(seed)

    def document(self) -> Document:
        task = self.draw.choice(self.tasks)
        plan = PLANS[task.payload["task"]]
        kind = self.draw.choices(list(SHARES), list(SHARES.values()))[0]
        if kind == "rollout":
            if self.draw.random() < SHOWN:
                return self._rollout(task, plan.right, plan, first_is_trained=False)
            right = self.draw.random() < RIGHT[task.payload["task"]]
            return self._rollout(task, plan.right if right else self.draw.choice(plan.wrong), plan)
        return getattr(self, f"_{kind}")(task, plan)

    def _turns(self, first: str, plan: Plan) -> list[str]:
        """A wrong first step is not mended: the policy goes on as if it had been right."""
        return [first] if first == plan.wrong[0] and not first.startswith("{") else [first, plan.last]

    def _played(self, task: Task, texts: list[str]) -> tuple[list[tuple[int, ...]], str]:
        """(the ids before each turn, and before a turn after the last one; the evidence at the end)."""
        episode = self.world.start(task)
        ids = self.renderer.opening(episode.messages, episode.tools)
        prompts = [ids]
        for text in texts:
            ids += self.renderer.action_ids(text)
            result = episode.step(self.renderer.message(self.renderer.action_ids(text)))
            ids += self.renderer.appended(result.observations, closed=True)
            prompts.append(ids)
            if result.done:
                break
        return prompts, episode.evidence("rubric").text

    def _rollout(self, task: Task, first: str, plan: Plan, *, first_is_trained: bool = True) -> Document:
        texts = self._turns(first, plan)
        prompts, _ = self._played(task, texts)
        ids: tuple[int, ...] = ()
        trained: list[bool] = []
        for prompt, text in zip(prompts, texts, strict=False):
            action = self.renderer.action_ids(text)
            trained += [False] * (len(prompt) - len(ids)) + [first_is_trained or bool(ids)] * len(action)
            ids = prompt + action
        return Document(token_ids=ids, trained=tuple(trained))

    def _asked(self, history: tuple[int, ...], prompt: RolePrompt, evidence: str, reason: str, answer: str) -> Document:
        request: Message = role_message(prompt, evidence=evidence, reason=reason)
        asked = with_request(history, request, self.renderer)
        action = self.renderer.action_ids(answer)
        return Document(token_ids=asked + action, trained=(False,) * len(asked) + (True,) * len(action))

    def _failed(self, task: Task, plan: Plan) -> tuple[list[tuple[int, ...]], list[str], str]:
        texts = self._turns(self.draw.choice(plan.wrong), plan)
        prompts, evidence = self._played(task, texts)
        return prompts, texts[: len(prompts) - 1], evidence

    def _validator(self, task: Task, plan: Plan) -> Document:
        prompts, texts, evidence = self._failed(task, plan)
        step = self.draw.randrange(len(texts)) if self.draw.random() < 0.3 else 0
        harmful = step == 0 and texts[0] != call("get_users")
        if texts[0] == call("get_users") and step == len(texts) - 1:
            harmful = True  # looking around is harmless, to stop after it is not
        answer = json.dumps({"harmful": True, "reason": plan.reason}) if harmful else '{"harmful": false}'
        history = prompts[step] + self.renderer.action_ids(texts[step])
        return self._asked(history, self.prompts.validator, evidence, "", answer)

    def _corrector(self, task: Task, plan: Plan) -> Document:
        prompts, texts, evidence = self._failed(task, plan)
        step = len(texts) - 1 if texts[0] == call("get_users") else 0
        answer = plan.right if self.draw.random() < 0.8 else texts[step]
        history = prompts[step] + self.renderer.action_ids(texts[step])
        return self._asked(history, self.prompts.corrector, evidence, plan.reason, answer)

    def _verifier(self, task: Task, plan: Plan) -> Document:
        prompts, texts, evidence = self._failed(task, plan)
        name = self.draw.choice(list(self.prompts.verifier))
        step = len(texts) - 1 if texts[0] == call("get_users") else 0
        right = self.draw.random() < 0.6
        history = prompts[step] + self.renderer.action_ids(plan.right if right else texts[step])
        answer = PASS if right or name != "gold" else FAIL
        return self._asked(history, self.prompts.verifier[name], evidence, plan.reason, answer)


class _Texts(TextCollector):
    """Collects what documents are made of; a turn's text is read as `TokenRenderer` reads it."""

    def message(self, action_ids: Sequence[int]) -> Message:
        text = self.texts[-1]
        if not text.startswith("{"):
            return Message(role="assistant", content=text)
        return Message(role="assistant", content=text, tool_calls=(parse_tool_call(text),))


def main(folder: Path, seed: int = 0) -> None:
    world = default_environment(
        "tau2_telecom", domain="mock", train_split="base", heldout_split="base", only=list(PLANS)
    )
    texts = _Texts()
    collected = Teacher(world, texts, seed)
    for _ in range(TRAINING.documents):
        collected.document()
    tokenizer = train_tokenizer(texts.texts, VOCABULARY)
    teacher = Teacher(world, TokenRenderer(tokenizer), seed)
    documents = [teacher.document() for _ in range(TRAINING.documents)]
    lengths = [len(document.token_ids) for document in documents]
    print(f"{len(documents)} documents, {sum(lengths) / len(lengths):.0f} tokens in the mean, {max(lengths)} at most")
    model = new_model(SIZE, len(tokenizer), seed)
    train(model, documents, TRAINING, seed, ProgressLines("", steps=TRAINING.steps, every=20))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{folder}: train with it: python -m rti_exp.train --config-dir examples/conf experiment=tau2_mock")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python -m examples.tau2_mock FOLDER: the folder to make")
    main(Path(sys.argv[1]))
