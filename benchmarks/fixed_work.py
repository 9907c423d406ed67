"""Work of a fixed size: a world in which every turn has as many tokens as the next, and a random model for it.

Each word of the tokenizer is one token, and no stop token ends a turn (`endless_turns`), so that a turn has
`rollout.max_tokens` tokens, a tool's reply `reply_tokens`. The reward is a hash of what was written: every group
has a signal.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rti_exp.envs.base import StepResult
from rti_exp.types import Evidence, EvidenceLevel, Message, Task

CONTROL = ("<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
FRAME = 3
"""Control tokens around a reply that follows a turn without an end: <|end|> of the turn is a fourth."""


def words(count: int, seed: str, vocabulary: int = 900) -> str:
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(vocabulary)}" for _ in range(count))


def reward_of(text: str) -> float:
    """Between 0 and 1; two texts hardly ever have the same."""
    return zlib.crc32(text.encode()) / 2**32


class FixedWorld:
    """`max_turns` turns an episode; a prompt of `prompt_tokens` and replies of `reply_tokens`, control tokens included.

    The other arguments are there because the town has them, whose config this world's is an override of.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        train_tasks: int = 64,
        heldout_tasks: int = 12,
        families: Sequence[str] | None = None,
        max_turns: int = 5,
        prompt_tokens: int = 30,
        reply_tokens: int = 20,
        words: int = 900,
    ) -> None:
        self.max_turns = max_turns
        self.prompt_tokens = prompt_tokens
        self.reply_tokens = reply_tokens
        self._tasks = train_tasks
        self.words = words

    def tasks(self, split: str) -> list[Task]:
        return [Task(id=f"{split}/{i}", family="fixed", split=split, payload={}) for i in range(self._tasks)]

    def start(self, task: Task) -> FixedEpisode:
        return FixedEpisode(self, task)


class FixedEpisode:
    def __init__(self, world: FixedWorld, task: Task) -> None:
        self._world = world
        self._task = task
        self._said: list[str] = []

    @property
    def messages(self) -> list[Message]:
        # <|bos|> <|user|> ... <|end|> <|assistant|>
        return [Message(role="user", content=words(self._world.prompt_tokens - 4, self._task.id, self._world.words))]

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        return []

    def step(self, message: Message) -> StepResult:
        self._said.append(message.content)
        if len(self._said) == self._world.max_turns:
            return StepResult(observations=(), done=True, reward=reward_of(message.content))
        # <|end|> <|tool|> ... <|end|> <|assistant|>
        text = words(self._world.reply_tokens - FRAME - 1, f"{self._task.id}/{len(self._said)}", self._world.words)
        return StepResult(observations=(Message(role="tool", content=text),), done=False)

    def evidence(self, level: EvidenceLevel) -> Evidence:
        return Evidence(level=level)

    def state_hash(self) -> str:
        return f"{zlib.crc32(' '.join(self._said).encode()):08x}"

    def fork(self, messages: Sequence[Message]) -> FixedEpisode:
        episode = FixedEpisode(self._world, self._task)
        for message in messages:
            episode.step(message)
        return episode


def endless_turns() -> None:
    """From now on, in this process, no token ends a turn."""
    from rti_exp.rollout.token_renderer import TokenRenderer

    TokenRenderer.stop_ids = property(lambda self: ())  # pyright: ignore[reportAttributeAccessIssue]


def save_model(folder: Path, *, vocabulary: int = 960, positions: int = 512, width: int = 128, seed: int = 0) -> None:
    """A random Qwen3 of the tiny policy's size (128 wide: 714,112 weights with 960 words), with its tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    heads, word_count = width // 32, vocabulary - len(CONTROL)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=4,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=positions,
        initializer_range=0.05,
        pad_token_id=word_count,
        bos_token_id=word_count + 1,
        eos_token_id=word_count + 2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    # Control tokens come after the words: they must not be words, which plain text could spell.
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(word_count)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(list(CONTROL))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>"
    ).save_pretrained(folder)


def keys(
    folder: Path, *, turns: int = 5, tokens: int = 25, prompt: int = 30, reply: int = 20, words: int = 900
) -> list[str]:
    """Overrides of rti_exp.train for this work, without tasks and group size."""
    return [
        f"policy.path={folder}",
        "env._target_=fixed_work.FixedWorld",
        f"env.max_turns={turns}",
        f"+env.prompt_tokens={prompt}",
        f"+env.reply_tokens={reply}",
        f"+env.words={words}",
        f"rollout.max_tokens={tokens}",
        f"rollout.max_context={prompt + turns * tokens + (turns - 1) * reply}",
        "algorithm.updates=1",
        "corrector=none",
    ]
