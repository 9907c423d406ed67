"""The memory that a run needs, computed without weights: the model is built of fake tensors.

Everything is in bytes of one device. Parameters and the tensors that autograd saves are counted; the rest are formulas.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rti_exp.config.policy_settings import LoraSettings
from rti_exp.config.typed_config import Config
from rti_exp.models.head import CHUNK_VALUES, CHUNKED_FROM

ADAM_MOMENTS = 2
UNSHARDED_LAYERS = 2
"""Layers whose whole weights FSDP holds at once: the current one, and the next one, which is prefetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes that do not depend on the strategy."""

    parameters: int
    trained_parameters: int
    weights: int
    layer_weights: int
    """Of the largest decoder layer."""
    trained_weights: int
    reference: int
    """A frozen copy for a KL term, or the algorithm's teacher, which is assumed to be of the policy's size."""
    autocast_copies: int
    """bf16 copies of the linear layers' weights, which autocast keeps during a forward pass."""
    activations: int
    """Tensors saved for the backward pass of one micro-batch, without the head's."""
    head: int
    """Logits of a micro-batch, or of a chunk of it, with their gradient, if all tokens are trained."""
    cache: int
    """Keys and values of the engine's slots."""
    tokens_per_iteration: int
    """The most tokens of all rollouts on all devices."""


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
        """Peak of the update phase, during which the engine keeps its cache."""
        fixed = self.weights + self.gradients + self.optimizer + self.reference + self.cache
        return fixed + self.autocast_copies + self.activations + self.head

    @property
    def rollout(self) -> int:
        """Peak of the rollouts, without the temporary tensors of single decode steps."""
        return self.weights + self.optimizer + self.reference + self.autocast_copies + self.cache


def sizes(config: Config, architecture: PretrainedConfig) -> Sizes:
    """The sizes for this config and architecture."""
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
            # Each layer keeps its input; the rest is recomputed for one layer at a time.
            activations = layers * rows * length * width * (2 if autocast else dtype.itemsize) + activations // layers
        parameters = list(model.parameters())
        trained = [each for each in parameters if each.requires_grad]
        return Sizes(
            parameters=sum(each.numel() for each in parameters),
            trained_parameters=sum(each.numel() for each in trained),
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


def plan(counted: Sizes, *, strategy: str, devices: int) -> Plan:
    """The memory of one of `devices` under "one" (a single device), "ddp" or "fsdp"."""
    gradients, optimizer = counted.trained_weights, ADAM_MOMENTS * counted.trained_weights
    whole = Plan(
        name="one device" if strategy == "one" else f"DDP x {devices}",
        weights=counted.weights,
        gradients=gradients,
        optimizer=optimizer,
        reference=counted.reference,
        autocast_copies=counted.autocast_copies,
        activations=counted.activations,
        head=counted.head,
        cache=counted.cache,
    )
    if strategy == "one":
        return whole
    if strategy == "ddp":
        return dataclasses.replace(whole, gradients=2 * gradients)  # DDP's buckets are a second copy
    # The whole model for rollouts, and a sharded copy that is trained (`rti_exp.training.fsdp`).
    return dataclasses.replace(
        whole,
        name=f"FSDP2 x {devices}",
        weights=counted.weights + counted.weights // devices + UNSHARDED_LAYERS * counted.layer_weights,
        gradients=gradients // devices,
        optimizer=optimizer // devices,
    )


class _Adapted(torch.nn.Module):
    """A frozen linear layer with a float32 adapter; peft's does not work on fake tensors."""

    def __init__(self, base: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.base(inputs)
        return outputs + self.up(self.down(inputs.to(self.down.weight.dtype))).to(outputs.dtype)


def _adapt(model: PreTrainedModel, settings: LoraSettings) -> None:
    model.requires_grad_(False)
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        is_target = settings.targets == "all-linear" or re.fullmatch(settings.targets, name)
        if isinstance(module, torch.nn.Linear) and module is not head and is_target:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, _Adapted(module, settings.rank))


def _micro_batch(config: Config) -> tuple[int, int]:
    """(rows, tokens of each) of a micro-batch of trajectories of the greatest length."""
    length = config.rollout.max_context
    return max(1, config.algorithm.options.micro_batch_tokens // length), length


def _saved(model: PreTrainedModel, rows: int, length: int, *, autocast: bool) -> int:
    """Bytes that autograd saves in the decoder's forward pass, without weights."""
    weights = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
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
    linear = {id(each.weight): each.weight for each in model.modules() if isinstance(each, torch.nn.Linear)}
    return 2 * sum(weight.numel() for weight in linear.values() if weight.dtype != torch.bfloat16)


def _head(architecture: PretrainedConfig, tokens: int) -> int:
    """float32 logits, their softmax and gradient; if the head is chunked, those of a chunk, and the head's gradient."""
    text = architecture.get_text_config()
    if text.vocab_size >= CHUNKED_FROM:
        return 4 * (3 * CHUNK_VALUES + text.vocab_size * text.hidden_size)
    return 4 * 3 * tokens * text.vocab_size


def _cache(config: Config, architecture: PretrainedConfig, itemsize: int) -> int:
    """Of `rti_exp.engines.key_value_cache.SlotCache`."""
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
    return sum(each.numel() * each.element_size() for each in parameters)
