"""`python -m rti_exp.plan`: does it fit? Memory and compute of a run, estimated without weights and without a GPU.

    python -m rti_exp.plan policy=qwen3_8b trainer=gpu
    python -m rti_exp.plan policy=qwen3_8b trainer=gpu trainer.devices=8 rollout.max_context=16384 gpu=80
    python -m rti_exp.plan policy=hf policy.path=FOLDER_WITH_CONFIG_JSON ...      no weights are needed there
    python -m rti_exp.plan policy=qwen3_8b tflops=400                             hours, at this speed per device

    gpu=GiB        memory of a device, to print what fits
    tflops=NUMBER  the achieved speed of a device, in 10^12 floating point operations per second

Any key of rti_exp.train. Exit code 0, or 2 for a bad config.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from rti_exp.config.check import check
from rti_exp.config.compose import CONFIG_ERRORS, bad_config, composed
from rti_exp.config.conversion import refuse_options
from rti_exp.config.engine_settings import VllmEngineSettings
from rti_exp.config.model_files import HUB, PACKAGED
from rti_exp.config.paths import BUILTIN, policy_folder
from rti_exp.config.remote_settings import RemotePolicySettings
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Config
from rti_exp.experiment.trainer import silence_libraries
from rti_exp.models.known import ARCHITECTURES
from rti_exp.runs.redaction import redact_output

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from rti_exp.models.memory import Plan, Sizes

PLAN_KEYS = ("gpu", "tflops")
DEVICES = 8
"""The number of devices in the table if the config has one."""
ROWS = (
    ("weights", "weights"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer (Adam's two moments)"),
    ("reference", "reference model"),
    ("autocast_copies", "bf16 copies of weights (autocast)"),
    ("activations", "activations of a micro-batch"),
    ("head", "logits of a micro-batch"),
    ("cache", "KV cache of the engine"),
    ("update", "peak of an update"),
    ("rollout", "peak of the rollouts"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    try:
        refuse_options(arguments)
        numbers = {
            key: _positive(key, value) for key, _, value in (a.partition("=") for a in arguments) if key in PLAN_KEYS
        }
        config = check(composed([text for text in arguments if text.partition("=")[0] not in PLAN_KEYS]))
        silence_libraries()
        architecture, source = _architecture(config)
        from rti_exp.models.memory import sizes

        counted = sizes(config, architecture)
    except CONFIG_ERRORS as error:
        return bad_config(error)
    show(config, counted, source, **numbers)
    return 0


def _positive(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SettingsError(f"{key}={text!r}: must be a finite number > 0")
    return value


def _architecture(config: Config) -> tuple[PretrainedConfig, str]:
    """The policy's architecture and its source. Weights are neither needed nor downloaded.

    Raises:
        SettingsError: there is no config.json, or it is not a causal language model's.
    """
    from transformers import AutoConfig

    if isinstance(config.policy, RemotePolicySettings):
        raise SettingsError("policy=remote: uses no memory here; plan for a policy that is trained")
    path = config.policy.path
    if path in ARCHITECTURES:
        return AutoConfig.for_model(**ARCHITECTURES[path]), f"{path}, as listed in this package"
    ours = path.startswith((BUILTIN, PACKAGED, HUB))
    folder = policy_folder(path) if ours else Path(path).expanduser()
    file = folder / "config.json"
    if not file.is_file():
        raise SettingsError(f"policy.path={path!r}: there is no {file}; planning needs only that file")
    try:
        text: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return AutoConfig.for_model(**text), str(file)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{file}: is not a model's config ({type(error).__name__}: {error})") from error


def show(config: Config, counted: Sizes, source: str, *, gpu: float | None = None, tflops: float | None = None) -> None:
    """Print the tables."""
    from rti_exp.models.memory import plan

    world = config.trainer.devices * config.trainer.num_nodes
    many = world if world > 1 else DEVICES
    plans = [
        plan(counted, strategy="one", devices=1),
        *(plan(counted, strategy=strategy, devices=many) for strategy in ("ddp", "fsdp")),
    ]
    console = Console(soft_wrap=True, highlight=False)
    trained = (
        "" if counted.trained_parameters == counted.parameters else f", {_count(counted.trained_parameters)} trained"
    )
    console.print(f"{source}: {_count(counted.parameters)} parameters{trained}")
    console.print(memory_table(plans, gpu))
    taken = _taken_by_vllm(config)
    if taken is not None:
        console.print(f"vLLM takes another {taken:.0%} of each of these devices (engine.memory_fraction)")
    if gpu is not None:
        room = gpu * (1 - (taken or 0.0))
        for estimate in plans:
            worst = max(estimate.update, estimate.rollout) / 2**30
            verdict = "fits" if worst <= room else "does not fit"
            console.print(f"{estimate.name}: {verdict} into {room:g} GiB ({worst:.1f} GiB without fragmentation)")
    for line in work(config, counted, world, tflops):
        console.print(line)


def _taken_by_vllm(config: Config) -> float | None:
    """The share of the training devices' memory; None without vLLM on them."""
    options = config.engine.options
    return options.memory_fraction if isinstance(options, VllmEngineSettings) and not options.devices else None


def memory_table(plans: Sequence[Plan], gpu: float | None = None) -> Table:
    """The size of each part under each strategy, in GiB or MiB."""
    table = Table(title="memory of one device", title_justify="left")
    table.add_column("")
    for estimate in plans:
        table.add_column(estimate.name, justify="right")
    for name, shown in ROWS:
        values = [getattr(estimate, name) for estimate in plans]
        if any(values):
            table.add_row(
                shown, *(_size(value) for value in values), style="bold" if name in ("update", "rollout") else ""
            )
    return table


def work(config: Config, counted: Sizes, world: int, tflops: float | None) -> list[str]:
    """Tokens and floating point operations of an iteration; hours if `tflops` is given."""
    rollouts = config.run.tasks_per_iteration * config.run.group_size
    tokens = counted.tokens_per_iteration
    # 2 for each parameter and token forward; a backward pass is twice a forward one.
    flops = (2 + 6) * counted.parameters * tokens
    lines = [
        f"an iteration: {rollouts} rollouts of at most {config.rollout.max_context} tokens, {_count(tokens)} in all: "
        f"{flops / 1e12:.3g} TFLOP to roll out and train them (without roles and attention)",
    ]
    if tflops is None:
        lines.append("time: needs the speed of the device (tflops=NUMBER)")
    else:
        hours = flops * config.run.max_iterations / (tflops * 1e12 * world) / 3600
        lines.append(
            f"time: at least {hours:.3g} hours for {config.run.max_iterations} iterations on {world} device(s) at "
            f"{tflops:g} TFLOP/s, if rollouts reach that speed too (decoding reaches a fraction of it)"
        )
    return lines


def _size(value: int) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def _count(value: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
