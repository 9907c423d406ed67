"""TRL's GRPOTrainer on the same work, through its tools and environment interface (of `against_trl.py`).

One optimizer step a generation, no reference, fp32, no gradient checkpointing, no logging, nothing saved. What the
policy writes goes to the environment as it stands: the tokenizer reads a turn that calls a tool as one call of
`call(text=...)`, one that asks the user as `tell(text=...)`.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from fixed_work import FRAME, reward_of, words

from rti_exp.types import Message, Task

TEMPLATE = (
    "{{ '<|bos|>' }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments }}{% endfor %}{{ '<|end|>' }}"
    "{% elif m.role == 'tool' and m.name == 'tell' %}{{ '<|user|>' + m.content + '<|end|>' }}"
    "{% else %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""The embedded policies' format, but for the calls: TRL renders those only to see how a tool's result follows them.
A user's answer to a question is a tool's result to TRL."""


class FixedTools:
    """The environment of `fixed_work.FixedWorld`, as TRL wants it."""

    def reset(self, number: int, reply_tokens: int, **row: Any) -> None:
        self._task, self._reply, self._turns = f"train/{number}", reply_tokens, 0

    def call(self, text: str) -> str:
        """Go on.

        Args:
            text: what was written.
        """
        self._turns += 1
        # One word more than in our own format, which closes a turn that was cut off.
        return words(self._reply - FRAME, f"{self._task}/{self._turns}")

    def _reward(self, text: str) -> float:
        return reward_of(text)


class TownTools:
    """The town, as TRL wants it."""

    tasks: tuple[Task, ...] = ()

    def reset(self, number: int, **row: Any) -> None:
        from rti_exp.envs.town.world import TownEpisode

        self._episode = TownEpisode(self.tasks[number])
        self._over = False

    def call(self, text: str) -> str:
        """Call a tool.

        Args:
            text: the whole turn.
        """
        return self._step(text)

    def tell(self, text: str) -> str:
        """Ask the user.

        Args:
            text: the whole turn.
        """
        return self._step(text)

    def _step(self, text: str) -> str:
        if self._over:
            return ""
        result = self._episode.step(self._read(text))
        self._over = result.done
        return "".join(message.content for message in result.observations)

    def _reward(self, text: str) -> float:
        """0 if the episode ran out of turns or tokens, as everywhere."""
        if self._over or not text or text.lstrip().startswith("{"):
            return 0.0
        result = self._episode.step(Message(role="assistant", content=text))
        return float(result.reward) if result.done else 0.0

    @staticmethod
    def _read(text: str) -> Message:
        from rti_exp.rollout.tool_calls import MalformedToolCall, parse_tool_call

        if not text.lstrip().startswith("{"):
            return Message(role="assistant", content=text)
        try:
            return Message(role="assistant", content=text, tool_calls=(parse_tool_call(text),))
        except MalformedToolCall as error:
            return Message(role="assistant", content=text, malformed=str(error))


def rewards(completions: list[Any], environments: list[Any], **rest: Any) -> list[float]:
    return [
        environment._reward(completion[-1]["content"] if completion[-1]["role"] == "assistant" else "")
        for completion, environment in zip(completions, environments, strict=True)
    ]


def reading(tokenizer: Any, *, fixed: bool) -> Any:
    """The tokenizer, with the template and with a parser of its turns."""
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_schema = {"type": "object"}  # told to TRL only: the parser below is what it calls

    def parse_response(ids: list[int], **rest: Any) -> dict[str, Any]:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        tool = "call" if fixed or text.lstrip().startswith("{") else "tell" if "speed test" in text.lower() else None
        if tool is None:
            return {"role": "assistant", "content": text}
        function = {"name": tool, "arguments": {"text": text}}
        return {"role": "assistant", "content": text, "tool_calls": [{"type": "function", "function": function}]}

    tokenizer.parse_response = parse_response
    return tokenizer


def trainer(work: Any, folder: Path, output: Path, *, micro_batch: int) -> Any:
    """A GRPOTrainer for `work` (`against_trl.Work`).

    Args:
        micro_batch: episodes of one forward and backward pass.
    """
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    tokenizer = reading(PreTrainedTokenizerFast.from_pretrained(folder), fixed=work.fixed)
    episodes = work.tasks * work.members
    settings = GRPOConfig(
        output_dir=str(output),
        use_cpu=work.trainer == "cpu",
        bf16=work.trainer != "cpu",
        gradient_checkpointing=False,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=episodes // micro_batch,
        num_generations=work.members,
        max_steps=work.steps,
        max_completion_length=work.context - work.prompt,
        max_tool_calling_iterations=work.turns - 1,
        generation_kwargs={
            "max_new_tokens": work.tokens,
            **({"min_new_tokens": work.tokens} if work.fixed else {}),
        },
        temperature=1.0,
        top_k=0,
        beta=0.0,
        epsilon_high=0.28,
        loss_type="dapo",
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        shuffle_dataset=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        seed=0,
    )
    rows = [
        {"number": i, "reply_tokens": work.reply, "prompt": work.opening(i)} for i in range(work.tasks * work.steps)
    ]
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
        reward_funcs=[rewards],
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=FixedTools if work.fixed else TownTools,
    )


def run(work: Any, folder: Path, output: Path, *, micro_batch: int) -> list[dict[str, float]]:
    """Seconds and tokens of each optimizer step."""
    from transformers import TrainerCallback

    if not work.fixed:
        TownTools.tasks = tuple(work.town_tasks())
    made = trainer(work, folder, output, micro_batch=micro_batch)
    steps: list[dict[str, float]] = []
    generated: dict[str, float] = {}
    generate = made._generate

    def timed(prompts: Any) -> Any:
        started = time.perf_counter()
        answer = generate(prompts)
        masks = answer[2]
        generated["generation"] = generated.get("generation", 0.0) + time.perf_counter() - started
        generated["generated"] = generated.get("generated", 0.0) + sum(map(sum, masks))
        return answer

    made._generate = timed
    calculate = made._calculate_rewards

    def counted(*arguments: Any) -> Any:
        found = calculate(*arguments)
        groups = found.nansum(dim=1).view(-1, work.members)
        generated["signal"] = float((groups.std(dim=1) > 0).float().mean())
        return found

    made._calculate_rewards = counted

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.wall, self.processor = math.nan, math.nan

        def on_step_begin(self, *arguments: Any, **keywords: Any) -> None:
            generated.clear()
            self.wall, self.processor = time.perf_counter(), time.process_time()

        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            seconds = time.perf_counter() - self.wall
            processor = time.process_time() - self.processor
            # All that was generated is trained, groups without a signal too.
            steps.append({**generated, "trained": generated["generated"], "seconds": seconds, "processor": processor})

    made.add_callback(Clock())
    made.train()
    return [{**step, "update": step["seconds"] - step["generation"]} for step in steps]
