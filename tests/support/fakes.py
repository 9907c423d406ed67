"""Shared fakes: a small world, a small tokenizer, small random models.

In `GuessWorld` each task is a box. `take(key)` takes a key; the first key that is taken stays in the hand (the critical
step). `open()` shows a two-digit code if the key fits, else "stuck". A turn of plain text ends the episode, with reward
1.0 if the key fits and the text is the code, else 0.0. The best episode:

    user       box a
    assistant  {"name": "take", "arguments": {"key": "red"}}        tool  took red
    assistant  {"name": "open", "arguments": {}}                    tool  code 17
    assistant  17                                                   done, reward 1.0

    world = GuessWorld()
    task = world.tasks("train")[0]                 # payload {"box": "a", "key": "red", "code": "17"}
    right_texts(task), wrong_texts(task)           # the assistant texts of a successful and of a failed episode
    GuessWorld(break_at=1)                         # step() raises InfrastructureError at turn index 1
    GuessWorld(break_start=True)                   # start() raises
    GuessWorld(break_fork=True)                    # fork() raises
    GuessWorld(drift=True)                         # a forked episode has a different state hash
    GuessWorld(error=ValueError("boom"))           # raised instead of InfrastructureError("the box is gone")

`tiny_tokenizer()` is a `PreTrainedTokenizerFast` in the format of the tiny policy: `<|pad|>` 0, `<|bos|>` 1,
`<|end|>` 2, `<|system|>` 3, `<|user|>` 4, `<|assistant|>` 5, `<|tool|>` 6, then bytes and merges, 400 ids or fewer.
`tiny_model(seed=0, sharpen=4.0)` is a random Qwen3 in eval mode. Its weights are multiplied by `sharpen`, so that
errors in attention show in its output. `tiny_gpt2` has absolute positions.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.types import Evidence, EvidenceLevel, Message, Task

KEYS = ("red", "blue", "green")
SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
RUBRIC = ("the key fits", "the code is told")


def call(name: str, **arguments: Any) -> str:
    """The text of a tool call."""
    return json.dumps({"name": name, "arguments": arguments})


def right_texts(task: Task) -> tuple[str, ...]:
    return (call("take", key=task.payload["key"]), call("open"), task.payload["code"])


def wrong_texts(task: Task) -> tuple[str, ...]:
    """Fails by its first step alone, which takes a wrong key."""
    wrong = KEYS[(KEYS.index(task.payload["key"]) + 1) % len(KEYS)]
    return (call("take", key=wrong), call("open"), "stuck")


class GuessEpisode:
    """One attempt at a box; see the module's docstring."""

    tools = (
        {
            "name": "take",
            "description": "Take a key.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
        {"name": "open", "description": "Open the box.", "parameters": {"type": "object", "properties": {}}},
    )

    def __init__(self, task: Task, world: GuessWorld, *, drifted: bool = False) -> None:
        self.task = task
        self.world = world
        self.drifted = drifted
        self.turns = 0
        self.held: str | None = None
        self.answer: str | None = None

    @property
    def messages(self) -> Sequence[Message]:
        return (Message(role="user", content=f"box {self.task.payload['box']}"),)

    @property
    def _fits(self) -> bool:
        return self.held == self.task.payload["key"]

    def step(self, message: Message) -> StepResult:
        if self.world.break_at == self.turns:
            raise self.world.error
        self.turns += 1
        if message.malformed is not None:
            return self._tool(f"error: {message.malformed}")
        if message.tool_calls:
            return self._tool(self._call(message.tool_calls[0].name, message.tool_calls[0].arguments))
        self.answer = message.content
        parts = {"key": float(self._fits), "code": float(self.answer == self.task.payload["code"])}
        return StepResult(observations=(), done=True, reward=min(parts.values()), reward_parts=parts)

    @staticmethod
    def _tool(text: str) -> StepResult:
        return StepResult(observations=(Message(role="tool", content=text),), done=False)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name == "open":
            return f"code {self.task.payload['code']}" if self._fits else "stuck"
        if name != "take" or arguments.get("key") not in KEYS:
            return "error: no such tool or key"
        if self.held is not None:
            return "hand full"
        self.held = arguments["key"]
        return f"took {self.held}"

    def evidence(self, level: EvidenceLevel) -> Evidence:
        if level == "none":
            return Evidence(level=level)
        met = (self._fits, self.answer == self.task.payload["code"])
        failed = tuple(text for text, holds in zip(RUBRIC, met, strict=True) if not holds)
        solution = f"key {self.task.payload['key']}, code {self.task.payload['code']}"
        return Evidence(level=level, rubric=RUBRIC, failed=failed, reference=solution if level == "reference" else None)

    def state_hash(self) -> str:
        state = (self.task.id, self.turns, self.held, self.answer, self.drifted)
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]

    def fork(self, messages: Sequence[Message]) -> GuessEpisode:
        if self.world.break_fork:
            raise self.world.error
        episode = GuessEpisode(self.task, self.world, drifted=self.world.drift)
        for message in messages:
            episode.step(message)
        return episode


class GuessWorld:
    """Boxes and keys; see the module's docstring. `started` counts the episodes."""

    def __init__(
        self,
        *,
        tasks_per_split: int = 4,
        max_turns: int = 4,
        break_at: int | None = None,
        break_start: bool = False,
        break_fork: bool = False,
        drift: bool = False,
        error: Exception | None = None,
    ) -> None:
        self.tasks_per_split = tasks_per_split
        self.max_turns = max_turns
        self.break_at = break_at
        self.break_start = break_start
        self.break_fork = break_fork
        self.drift = drift
        self.error = error if error is not None else InfrastructureError("the box is gone")
        self.started = 0

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in ("train", "heldout"):
            raise ValueError(f"no split {split!r}: there are train and heldout")
        first = 0 if split == "train" else self.tasks_per_split
        return tuple(self._task(split, number) for number in range(first, first + self.tasks_per_split))

    @staticmethod
    def _task(split: str, number: int) -> Task:
        box = chr(ord("a") + number % 26)
        payload = {"box": box, "key": KEYS[number % len(KEYS)], "code": f"{(17 + 29 * number) % 90 + 10}"}
        family = "box_even" if number % 2 == 0 else "box_odd"
        return Task(id=f"box_{number}", family=family, split=split, payload=payload)

    def start(self, task: Task) -> GuessEpisode:
        self.started += 1
        if self.break_start:
            raise self.error
        return GuessEpisode(task, self)


def _corpus() -> list[str]:
    world = GuessWorld(tasks_per_split=26)
    texts = [text for task in world.tasks("train") for text in (*right_texts(task), *wrong_texts(task))]
    texts += [f"took {key}" for key in KEYS] + ["stuck", "hand full", *RUBRIC, "box ", "code "]
    texts += ['{"harmful": false}', '{"harmful": true, "reason": "the wrong key"}', '{"pass": true}', '{"pass": false}']
    return [*texts, "judge: ", "rewrite: ", "gold? ", "leak? ", "plausible?"]


@functools.lru_cache(maxsize=1)
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer in the tiny policy's format, trained on the strings of `GuessWorld`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", bos_token="<|bos|>", eos_token="<|end|>"
    )


def _sharpened(model: torch.nn.Module, sharpen: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(sharpen)


def tiny_model(
    seed: int = 0,
    *,
    vocab_size: int = 400,
    sharpen: float = 4.0,
    hidden_size: int = 32,
    layers: int = 2,
    attention: Literal["sdpa", "eager"] = "sdpa",
) -> Qwen3ForCausalLM:
    """A random Qwen3 in fp32 and eval mode (4 heads of width 8 on 2 key/value heads), the same for equal arguments."""
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    _sharpened(model, sharpen)
    return model.eval()


def tiny_gpt2(seed: int = 0, *, vocab_size: int = 400, sharpen: float = 4.0) -> GPT2LMHeadModel:
    """A random GPT-2 (absolute positions) in fp32 and eval mode."""
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=512, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config)
    _sharpened(model, sharpen)
    return model.eval()
