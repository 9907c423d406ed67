"""Runs a task's grader: python -m rti_exp.envs.claw_eval.grader_process, with the checkout's src on the path.

The first line of standard input is the request, as JSON. Each question to the judge is a line of standard output,
its answer the next line of input. The last line of output is {"scores": {...}, "task_score": ..., "passed": ...}.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from rti_exp.envs.claw_eval.frozen_clock import freeze


class Judge:
    """The judge that graders call; its questions go to the parent, which has the model."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def evaluate(self, task_prompt: str, conversation: str, actions_summary: str, rubric: str) -> SimpleNamespace:
        prompt = f"## Task\n{task_prompt}\n\n## Conversation\n{conversation}\n\n## Actions taken\n{actions_summary}"
        return self._ask(prompt, rubric)

    def evaluate_actions(self, task_prompt: str, artifacts: str, rubric: str) -> SimpleNamespace:
        return self._ask(f"## Task\n{task_prompt}\n\n## Actions, from the services' own log\n{artifacts}", rubric)

    def _ask(self, prompt: str, rubric: str) -> SimpleNamespace:
        print(json.dumps({"prompt": str(prompt), "rubric": str(rubric)}), file=self._output, flush=True)
        answer = json.loads(sys.stdin.readline() or "null")
        if answer is None:
            sys.exit(3)  # the parent has no verdict, and has said why
        return SimpleNamespace(score=answer["score"], reasoning=answer["reasoning"])


def main() -> None:
    import pydantic  # noqa: F401  # pyright: ignore[reportMissingImports]  (it must see the real clock's types)

    freeze()
    from claw_eval.graders.registry import get_grader  # pyright: ignore[reportMissingImports]
    from claw_eval.models.message import Message  # pyright: ignore[reportMissingImports]
    from claw_eval.models.scoring import compute_task_score, is_pass  # pyright: ignore[reportMissingImports]
    from claw_eval.models.task import TaskDefinition  # pyright: ignore[reportMissingImports]
    from claw_eval.models.trace import ToolDispatch, TraceMessage  # pyright: ignore[reportMissingImports]

    output, sys.stdout = sys.stdout, sys.stderr  # a grader's prints are not an answer
    asked = json.loads(sys.stdin.readline())
    task = TaskDefinition.from_yaml(asked["task_file"])
    messages = [TraceMessage(trace_id="rti", message=Message(**message)) for message in asked["messages"]]
    dispatches = [ToolDispatch(trace_id="rti", **dispatch) for dispatch in asked["dispatches"]]
    grader = get_grader(task.task_id, tasks_dir=asked["tasks_dir"], task_dir=asked["task_dir"])
    scores = grader.grade(messages, dispatches, task, audit_data=asked["audit"], judge=Judge(output))
    score = compute_task_score(scores)
    names = ("completion", "robustness", "safety")
    components = {name: float(getattr(scores, name)) for name in names}
    print(
        json.dumps({"scores": components, "task_score": score, "passed": bool(is_pass(score))}), file=output, flush=True
    )


if __name__ == "__main__":
    main()
