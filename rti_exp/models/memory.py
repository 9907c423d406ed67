"""How much memory a run takes, worked out without weights: the model is built of fake tensors.

Everything here is in bytes of one device. Parameters and what autograd saves are counted, not guessed; the rest
are formulas, each beside its name.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rti_exp.config.check import Config
from rti_exp.config.policy_settings import LoraSettings
from rti_exp.models.head import CHUNK_VALUES, CHUNKED_FROM

ADAM_MOMENTS = 2
UNSHARDED_LAYERS = 2
"""Layers whose whole weights FSDP holds at once: the one at work, and the one that is fetched meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is counted once, whatever the strategy."""

    parameters: int
    trained_parameters: int
    weights: int
    layer_weights: int
    """Of the largest decoder layer."""
    trained_weights: int
    reference: int
    """A frozen copy for a KL term, or the teacher that the algorithm learns from (taken to be of the policy's size)."""
    autocast_copies: int
    """bf16 copies of the linear layers' weights, which autocast keeps through a forward pass."""
    activations: int
    """What the backward pass of one micro-batch needs, the head left out."""
    head: int
    """Logits of a micro-batch, or of a chunk of it, with their gradient; all tokens taken to be trained."""
    cache: int
    """Keys and values of the engine's slots."""
    tokens_per_iteration: int
    """Of all rollouts, at most; of all devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Memory of one device under one strategy."""

    name: str
    weights: int
    gradients: int
    optimizer: int
    reference: int
    autocast_copies: int
    activations: int
    head: int
    cache: int

    @property
    def update(self) -> int:
        """Peak of the update phase; the engine keeps its cache meanwhile."""
        fixed = self.weights + self.gradients + self.optimizer + self.reference + self.cache
        return fixed + self.autocast_copies + self.activations + self.head

    @property
    def rollout(self) -> int:
        """Peak of the rollouts, what single decode steps take left out."""
        return self.weights + self.optimizer + self.reference + self.autocast_copies + self.cache


def sizes(config: Config, architecture: PretrainedConfig) -> Sizes:
    """Counts and formulas for this config and architecture."""
    dtype = torch.bfloat16 if config.trainer.precision == "bf16-true" else getattr(torch, config.policy.dtype)
    autocast = config.trainer.precision == "bf16-mixed"
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(architecture, dtype=dtype).eval()
        if config.policy.lora.rank:
            _adapt(model, config.policy.lora)
        rows, length = _micro_batch(config)
        activations = _saved(model, rows, length, autocast=autocast)
        if config.policy.gradient_checkpointing:
            layers = architecture.get_text_config().num_hidden_layers
            width = architecture.get_text_config().hidden_size
            # Each layer keeps its input, and one layer at a time computes the rest anew.
            activations = layers * rows * length * width * (2 if autocast else dtype.itemsize) + activations // layers
        parameters = list(model.parameters())
        trained = [one for one in parameters if one.requires_grad]
        return Sizes(
            parameters=sum(one.numel() for one in parameters),
            trained_parameters=sum(one.numel() for one in trained),
            weights=_bytes(parameters),
            layer_weights=max((_bytes(list(layer.parameters())) for layer in _layers(model)), default=0),
            trained_weights=_bytes(trained),
            reference=_bytes(parameters) if _needs_reference(config) else 0,
            autocast_copies=_copies(model) if autocast else 0,
            activations=activations,
            head=_head(architecture, rows * length),
            cache=_cache(config, architecture, 2 if autocast else dtype.itemsize),
            tokens_per_iteration=config.run.tasks_per_iteration * config.run.group_size * config.rollout.max_context,
        )


def plan(found: Sizes, *, strategy: str, devices: int) -> Plan:
    """The memory of one of `devices` under "one" (a single device), "ddp" or "fsdp"."""
    gradients, optimizer = found.trained_weights, ADAM_MOMENTS * found.trained_weights
    whole = Plan(
        name="one device" if strategy == "one" else f"DDP x {devices}",
        weights=found.weights,
        gradients=gradients,
        optimizer=optimizer,
        reference=found.reference,
        autocast_copies=found.autocast_copies,
        activations=found.activations,
        head=found.head,
        cache=found.cache,
    )
    if strategy == "one":
        return whole
    if strategy == "ddp":
        return dataclasses.replace(whole, gradients=2 * gradients)  # DDP's buckets are a second copy
    # Whole for the rollouts, and a sharded copy that is trained (`rti_exp.training.fsdp`).
    return dataclasses.replace(
        whole,
        name=f"FSDP2 x {devices}",
        weights=found.weights + found.weights // devices + UNSHARDED_LAYERS * found.layer_weights,
        gradients=gradients // devices,
        optimizer=optimizer // devices,
    )


class _Adapted(torch.nn.Module):
    """A frozen linear layer with a float32 adapter; peft's own does not work on fake tensors."""

    def __init__(self, base: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        made = self.base(inputs)
        return made + self.up(self.down(inputs.to(self.down.weight.dtype))).to(made.dtype)


def _adapt(model: PreTrainedModel, settings: LoraSettings) -> None:
    model.requires_grad_(False)
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        wanted = settings.targets == "all-linear" or re.fullmatch(settings.targets, name)
        if isinstance(module, torch.nn.Linear) and module is not head and wanted:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, _Adapted(module, settings.rank))


def _micro_batch(config: Config) -> tuple[int, int]:
    """(rows, tokens of each) of a micro-batch of trajectories that are as long as they may be."""
    length = config.rollout.max_context
    return max(1, config.algorithm.options.micro_batch_tokens // length), length


def _saved(model: PreTrainedModel, rows: int, length: int, *, autocast: bool) -> int:
    """Bytes that autograd saves in the decoder's forward pass, weights left out."""
    weights = {one.untyped_storage()._cdata for one in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    ids_BT = torch.zeros((rows, length), dtype=torch.long)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        model.get_decoder()(input_ids=ids_BT, use_cache=False)
    copies = _copies(model.get_decoder()) if autocast else 0
    return max(sum(storage.nbytes() for storage in kept.values()) - copies, 0)


def _copies(model: torch.nn.Module) -> int:
    """Bytes of the bf16 copies that autocast makes of the linear layers' weights that are not in bf16."""
    linear = {id(one.weight): one.weight for one in model.modules() if isinstance(one, torch.nn.Linear)}
    return 2 * sum(weight.numel() for weight in linear.values() if weight.dtype != torch.bfloat16)


def _head(architecture: PretrainedConfig, tokens: int) -> int:
    """float32 logits, their softmax and gradient; of a chunk, and the head's own gradient, where it is chunked."""
    text = architecture.get_text_config()
    if text.vocab_size >= CHUNKED_FROM:
        return 4 * (3 * CHUNK_VALUES + text.vocab_size * text.hidden_size)
    return 4 * 3 * tokens * text.vocab_size


def _cache(config: Config, architecture: PretrainedConfig, itemsize: int) -> int:
    """slots * length * 2 * layers * key/value heads * head width values (`rti_exp.engines.key_value_cache.SlotCache`)."""
    text, engine = architecture.get_text_config(), config.engine.options
    rollouts = -(-config.run.tasks_per_iteration * config.run.group_size // _world(config))
    batch = min(getattr(engine, "max_batch", rollouts), rollouts)
    slots = max(getattr(engine, "cache_rows", batch), 2 * batch)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return slots * config.rollout.max_context * 2 * text.num_hidden_layers * heads * width * itemsize


def _world(config: Config) -> int:
    return config.trainer.devices * config.trainer.num_nodes


def _needs_reference(config: Config) -> bool:
    options = config.algorithm.options
    return getattr(options, "beta", 0.0) > 0 or bool(getattr(options, "teacher", None))


def _layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    return list(getattr(model.get_decoder(), "layers", []))


def _bytes(parameters: list[torch.nn.Parameter]) -> int:
    return sum(one.numel() * one.element_size() for one in parameters)
