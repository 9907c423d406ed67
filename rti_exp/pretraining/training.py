"""Plain language-model training of the embedded models on generated documents."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rti_exp.pretraining.documents import Document
from rti_exp.pretraining.keeping import Keeper
from rti_exp.pretraining.prior import ModelSize, TrainingSettings


def make_model(size: ModelSize, vocab_size: int, seed: int) -> Qwen3ForCausalLM:
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
    """`settings.steps` batches over shuffled epochs; documents of like length stand together."""
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


def loss_of(model: PreTrainedModel, documents: Sequence[Document]) -> torch.Tensor:
    """Mean cross-entropy over the trained tokens, in nats. Right padding, so no attention mask is needed."""
    longest = max(len(document.token_ids) for document in documents)
    token_ids_BT = torch.zeros(len(documents), longest, dtype=torch.long)
    trained_BT = torch.zeros(len(documents), longest, dtype=torch.bool)
    other_ids_BT = torch.zeros(len(documents), longest, dtype=torch.long)
    other_weights_BT = torch.zeros(len(documents), longest)
    for row, document in enumerate(documents):
        token_ids_BT[row, : len(document.token_ids)] = torch.tensor(document.token_ids)
        trained_BT[row, : len(document.trained)] = torch.tensor(document.trained)
        for position, token_id, weight in document.alternatives:
            other_ids_BT[row, position], other_weights_BT[row, position] = token_id, weight
    streams = (token_ids_BT, trained_BT, other_ids_BT, other_weights_BT)
    token_ids_BT, trained_BT, other_ids_BT, other_weights_BT = (stream.to(model.device) for stream in streams)
    hidden_BTD = model.get_decoder()(input_ids=token_ids_BT[:, :-1], use_cache=False).last_hidden_state
    chosen_BT = trained_BT[:, 1:]
    head = model.get_output_embeddings()
    assert head is not None
    logits_NV = head(hidden_BTD[chosen_BT]).float()  # autocast's are of bf16
    log_probs_NV = logits_NV.log_softmax(dim=1)
    own_N = log_probs_NV.gather(1, token_ids_BT[:, 1:][chosen_BT][:, None])[:, 0]
    other_N = log_probs_NV.gather(1, other_ids_BT[:, 1:][chosen_BT][:, None])[:, 0]
    weights_N = other_weights_BT[:, 1:][chosen_BT]
    return -((1 - weights_N) * own_N + weights_N * other_N).mean()


def train(
    model: PreTrainedModel,
    documents: Sequence[Document],
    settings: TrainingSettings,
    seed: int,
    progress: Callable[[int, float], None],
    keeper: Keeper | None = None,
    *,
    mixed: bool = False,
) -> None:
    """AdamW with warm-up and cosine decay. `progress(step, loss)` is called after each step.

    With `keeper` it goes on after the steps that are done, to the same weights as without the break. With `mixed` the
    products are computed in bf16 (autocast); weights and optimizer stay as they are.

    Raises:
        OtherRun: what `keeper` finds is another run's.
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
    done = 0 if keeper is None else keeper.restore(model, optimizer, scheduler)
    model.train()
    for step, batch in enumerate(batches(documents, settings, seed), start=1):
        if step <= done:
            continue
        # entered at each step: it keeps copies of the weights until it is left
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=mixed):
            loss = loss_of(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if keeper is not None:
            keeper.after(loss.item(), model, optimizer, scheduler)
        progress(step, loss.item())
    model.eval()
