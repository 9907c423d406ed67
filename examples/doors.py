"""A custom environment: a door whose code is on a note. A wrong code locks it for good."""

from collections.abc import Sequence

from rti_exp.envs.base import StepResult
from rti_exp.types import Evidence, EvidenceLevel, Message, Task, ToolCall

CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
READ = {"name": "read_note", "description": "Read the note.", "parameters": {"type": "object", "properties": {}}}
ENTER = {"name": "enter", "description": "Enter a code.", "parameters": CODE}


class DoorEpisode:
    def __init__(self, task: Task) -> None:
        self.task, self.turns, self.door, self.tools = task, 0, "closed", (READ, ENTER)
        self.messages = (Message(role="user", content=f"Open door {task.payload['door']}."),)

    def step(self, message: Message) -> StepResult:
        self.turns += 1
        errors = () if message.malformed is None else (f"Error: {message.malformed}",)
        if texts := (*map(self._answer, message.tool_calls), *errors):
            return StepResult(observations=tuple(Message(role="tool", content=text) for text in texts), done=False)
        return StepResult(observations=(), done=True, reward=float(self.door == "open"))

    def _answer(self, call: ToolCall) -> str:
        if call.name == "read_note":
            return f"The code is {self.task.payload['code']}."
        if call.name != "enter" or not isinstance(call.arguments.get("code"), str):
            return "Error: no such tool, or no code."
        if self.door == "closed":
            self.door = "open" if call.arguments["code"] == self.task.payload["code"] else "locked"
        return f"The door is {self.door}."

    def evidence(self, level: EvidenceLevel) -> Evidence:
        rubric = () if level == "none" else ("the door is open",)
        reference = f"enter {self.task.payload['code']}" if level == "reference" else None
        return Evidence(level=level, rubric=rubric, failed=() if self.door == "open" else rubric, reference=reference)

    def state_hash(self) -> str:
        return f"{self.task.id} {self.turns} {self.door}"

    def fork(self, messages: Sequence[Message]) -> "DoorEpisode":
        episode = DoorEpisode(self.task)
        for message in messages:
            episode.step(message)
        return episode


class Doors:
    def __init__(self, *, tasks_per_split: int = 16, max_turns: int = 5) -> None:
        self.tasks_per_split, self.max_turns = tasks_per_split, max_turns

    def tasks(self, split: str) -> list[Task]:
        first = 100 + 400 * ("train", "heldout").index(split)
        payloads = [{"door": str(n), "code": str(n * 7919 % 9000)} for n in range(first, first + self.tasks_per_split)]
        return [Task(id=f"door-{door['door']}", family="door", split=split, payload=door) for door in payloads]

    def start(self, task: Task) -> DoorEpisode:
        return DoorEpisode(task)
