"""Supervised next-token training on generated documents."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rti_exp.pretraining.corpus import Document
from rti_exp.pretraining.progress import TrainingProgress
from rti_exp.pretraining.recipe import ModelSize, TrainingSettings


def new_model(size: ModelSize, vocab_size: int, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        intermediate_size=size.intermediate,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.05,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return Qwen3ForCausalLM(config)


def batches(documents: Sequence[Document], settings: TrainingSettings, seed: int) -> Iterator[list[Document]]:
    """`settings.steps` batches over shuffled epochs. A batch holds documents of similar length."""
    rng = random.Random(seed)
    size = settings.documents_per_step
    queue: list[list[Document]] = []
    for _ in range(settings.steps):
        if not queue:
            order = rng.sample(range(len(documents)), len(documents))
            for start in range(0, len(order) - size + 1, 50 * size):
                pool = sorted(order[start : start + 50 * size], key=lambda index: len(documents[index].token_ids))
                chunks = [pool[at : at + size] for at in range(0, len(pool) - size + 1, size)]
                rng.shuffle(chunks)
                queue += [[documents[index] for index in chunk] for chunk in chunks]
            queue.reverse()
        yield queue.pop()


def cross_entropy(model: PreTrainedModel, documents: Sequence[Document]) -> torch.Tensor:
    """Mean cross-entropy over the trained tokens, in nats. Padding is on the right, so no attention mask is needed.

    Axes: B documents, T tokens, N trained tokens, V vocabulary.
    """
    longest = max(len(document.token_ids) for document in documents)
    token_ids_BT = torch.zeros(len(documents), longest, dtype=torch.long)
    trained_BT = torch.zeros(len(documents), longest, dtype=torch.bool)
    alternative_ids_BT = torch.zeros(len(documents), longest, dtype=torch.long)
    weights_BT = torch.zeros(len(documents), longest)
    for row, document in enumerate(documents):
        token_ids_BT[row, : len(document.token_ids)] = torch.tensor(document.token_ids)
        trained_BT[row, : len(document.trained)] = torch.tensor(document.trained)
        for target in document.alternatives:
            alternative_ids_BT[row, target.position] = target.token_id
            weights_BT[row, target.position] = target.weight
    streams = (token_ids_BT, trained_BT, alternative_ids_BT, weights_BT)
    token_ids_BT, trained_BT, alternative_ids_BT, weights_BT = (stream.to(model.device) for stream in streams)
    hidden_BTD = model.get_decoder()(input_ids=token_ids_BT[:, :-1], use_cache=False).last_hidden_state
    targets_BT = trained_BT[:, 1:]
    head = model.get_output_embeddings()
    assert head is not None
    logits_NV = head(hidden_BTD[targets_BT]).float()  # under autocast they are bf16
    log_probs_NV = logits_NV.log_softmax(dim=1)
    token_N = log_probs_NV.gather(1, token_ids_BT[:, 1:][targets_BT][:, None])[:, 0]
    alternative_N = log_probs_NV.gather(1, alternative_ids_BT[:, 1:][targets_BT][:, None])[:, 0]
    weights_N = weights_BT[:, 1:][targets_BT]
    return -((1 - weights_N) * token_N + weights_N * alternative_N).mean()


def train(
    model: PreTrainedModel,
    documents: Sequence[Document],
    settings: TrainingSettings,
    seed: int,
    report: Callable[[Sequence[float]], None],
    progress: TrainingProgress | None = None,
    *,
    mixed: bool = False,
) -> list[float]:
    """Train with AdamW, warm-up and cosine decay.

    Args:
        seed: Orders the documents.
        report: Called after each step with the losses of all steps so far.
        progress: Resumes the run after its finished steps, with the same weights as an uninterrupted run.
        mixed: Compute matrix products in bf16 (autocast). Weights and optimizer keep their dtype.

    Returns:
        The loss of each step.

    Raises:
        ForeignProgress: the saved progress belongs to a run with other settings.
    """
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=0.01,
    )

    def rate(step: int) -> float:
        rise = min(1.0, (step + 1) / settings.warmup)
        return rise * 0.5 * (1 + math.cos(math.pi * min(1.0, step / settings.steps)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = [] if progress is None else progress.restore(model, optimizer, scheduler)
    model.train()
    for step, batch in enumerate(batches(documents, settings, seed), start=1):
        if step <= len(losses):
            continue
        # One context per step: autocast caches the cast weights until it exits.
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=mixed):
            loss = cross_entropy(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if progress is not None:
            progress.after_step(losses, model, optimizer, scheduler)
        report(losses)
    model.eval()
    return losses
