"""`python -m rti_exp.plan`: will it fit? Memory and work of a run, worked out without weights and without a GPU.

    python -m rti_exp.plan policy=qwen3_8b trainer=gpu
    python -m rti_exp.plan policy=qwen3_8b trainer=gpu trainer.devices=8 rollout.max_context=16384 gpu=80
    python -m rti_exp.plan policy=hf policy.path=FOLDER_WITH_CONFIG_JSON ...      no weights are needed there
    python -m rti_exp.plan policy=qwen3_8b tflops=400                             hours, at this speed of a device

    gpu=GiB        memory of a device: says what fits
    tflops=NUMBER  floating point operations that a device really does in a second (10^12)

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

from rti_exp.config.check import Config, check
from rti_exp.config.compose import CONFIG_ERRORS, bad_config, composed
from rti_exp.config.conversion import refuse_options
from rti_exp.config.engine_settings import VllmEngineSettings
from rti_exp.config.model_files import HUB, PACKAGED
from rti_exp.config.paths import BUILTIN, policy_folder
from rti_exp.config.remote_settings import RemotePolicySettings
from rti_exp.config.settings import SettingsError
from rti_exp.experiment.trainer import silence_libraries
from rti_exp.models.known import ARCHITECTURES

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from rti_exp.models.memory import Plan, Sizes

OWN = ("gpu", "tflops")
DEVICES = 8
"""How many devices are shown for a config that names one."""
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
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    try:
        refuse_options(arguments)
        numbers = {key: _positive(key, value) for key, _, value in (a.partition("=") for a in arguments) if key in OWN}
        config = check(composed([text for text in arguments if text.partition("=")[0] not in OWN]))
        silence_libraries()
        architecture, source = _architecture(config)
        from rti_exp.models.memory import sizes

        found = sizes(config, architecture)
    except CONFIG_ERRORS as error:
        return bad_config(error)
    show(config, found, source, **numbers)
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
    """The policy's, and where it is known from. Weights are neither needed nor fetched.

    Raises:
        SettingsError: there is no config.json, or it is no causal language model's.
    """
    from transformers import AutoConfig

    path = config.policy.path
    if isinstance(config.policy, RemotePolicySettings):
        raise SettingsError("policy=remote: takes no memory here; plan for the policy that is trained")
    if path in ARCHITECTURES:
        return AutoConfig.for_model(**ARCHITECTURES[path]), f"{path}, as known to this package"
    ours = path.startswith((BUILTIN, PACKAGED, HUB))
    folder = policy_folder(path) if ours else Path(path).expanduser()
    file = folder / "config.json"
    if not file.is_file():
        raise SettingsError(f"policy.path={path!r}: there is no {file}; planning needs that file alone")
    try:
        text: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return AutoConfig.for_model(**text), str(file)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{file}: is no model's config ({type(error).__name__}: {error})") from error


def show(config: Config, found: Sizes, source: str, *, gpu: float | None = None, tflops: float | None = None) -> None:
    """Print the tables."""
    from rti_exp.models.memory import plan

    world = config.trainer.devices * config.trainer.num_nodes
    many = world if world > 1 else DEVICES
    plans = [
        plan(found, strategy="one", devices=1),
        *(plan(found, strategy=one, devices=many) for one in ("ddp", "fsdp")),
    ]
    console = Console(soft_wrap=True, highlight=False)
    trained = "" if found.trained_parameters == found.parameters else f", {_count(found.trained_parameters)} trained"
    console.print(f"{source}: {_count(found.parameters)} parameters{trained}")
    console.print(memory_table(plans, gpu))
    taken = _taken_by_vllm(config)
    if taken is not None:
        console.print(f"vLLM takes {taken:.0%} of each of these devices besides (engine.memory_fraction)")
    if gpu is not None:
        room = gpu * (1 - (taken or 0.0))
        for one in plans:
            worst = max(one.update, one.rollout) / 2**30
            verdict = "fits" if worst <= room else "does not fit"
            console.print(f"{one.name}: {verdict} into {room:g} GiB ({worst:.1f} GiB, fragmentation left out)")
    for line in work(config, found, world, tflops):
        console.print(line)


def _taken_by_vllm(config: Config) -> float | None:
    """Share of the training devices' memory; None if vLLM is not there."""
    options = config.engine.options
    return options.memory_fraction if isinstance(options, VllmEngineSettings) and not options.devices else None


def memory_table(plans: Sequence[Plan], gpu: float | None = None) -> Table:
    """GiB (MiB below one) of each part under each strategy."""
    made = Table(title="memory of one device", title_justify="left")
    made.add_column("")
    for one in plans:
        made.add_column(one.name, justify="right")
    for name, shown in ROWS:
        values = [getattr(one, name) for one in plans]
        if any(values):
            made.add_row(
                shown, *(_size(value) for value in values), style="bold" if name in ("update", "rollout") else ""
            )
    return made


def work(config: Config, found: Sizes, world: int, tflops: float | None) -> list[str]:
    """Tokens and floating point operations of an iteration; hours only at a speed that the user states."""
    rollouts = config.run.tasks_per_iteration * config.run.group_size
    tokens = found.tokens_per_iteration
    # 2 for each parameter and token forward; a backward pass is twice a forward one.
    flops = (2 + 6) * found.parameters * tokens
    lines = [
        f"an iteration: {rollouts} rollouts of at most {config.rollout.max_context} tokens, {_count(tokens)} in all: "
        f"{flops / 1e12:.3g} TFLOP to roll out and train them (roles and attention left out)",
    ]
    if tflops is None:
        lines.append("time: not known without the speed of the device (tflops=NUMBER)")
    else:
        hours = flops * config.run.max_iterations / (tflops * 1e12 * world) / 3600
        lines.append(
            f"time: at least {hours:.3g} hours for {config.run.max_iterations} iterations on {world} device(s) at "
            f"{tflops:g} TFLOP/s, if rollouts reach that too (decoding reaches a fraction of it)"
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
