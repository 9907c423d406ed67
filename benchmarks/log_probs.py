"""Memory and time of the loss's log-probs with a vocabulary of 151,936 (Qwen3's): python benchmarks/log_probs.py

One forward and backward pass of a head of width 256 over 4 rows of 300 tokens, 45% of them trained, on one CPU thread,
each way in a process of its own: its peak memory above that of the weights and their gradient, and its CPU seconds.

    full       log-softmax of the logits of all tokens, then the trained ones' targets
    trained    the same of trained tokens only
    chunked    log-probs in chunks of trained tokens (rti_exp.models.head; from 16,384 entries on)
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time

ROWS, TOKENS, WIDTH = 4, 300, 256
TRAINED_SHARE = 0.45
WAYS = ("full", "trained", "chunked")


def measure(way: str, vocabulary: int, results: multiprocessing.Queue[tuple[str, float, float]]) -> None:
    import torch

    from rti_exp.models.head import chunked_log_probs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, vocabulary, bias=False)
    hidden_BTD = torch.randn(ROWS, TOKENS, WIDTH, requires_grad=True)
    trained_BT = torch.rand(ROWS, TOKENS) < TRAINED_SHARE
    targets_N = torch.randint(vocabulary, (int(trained_BT.sum()),))
    head.weight.grad = torch.zeros_like(head.weight)
    before = _peak_mebibytes()
    started = time.process_time()
    if way == "chunked":
        log_probs_N, _ = chunked_log_probs(head, hidden_BTD[trained_BT], targets_N)
    else:
        states = hidden_BTD if way == "full" else hidden_BTD[trained_BT]
        log_probs = head(states).log_softmax(dim=-1)
        log_probs_NV = log_probs[trained_BT] if way == "full" else log_probs
        log_probs_N = log_probs_NV.gather(1, targets_N[:, None])[:, 0]
    log_probs_N.mean().backward()
    results.put((way, _peak_mebibytes() - before, time.process_time() - started))


def _peak_mebibytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--vocabulary", type=int, default=151_936)
    vocabulary = arguments.parse_args().vocabulary
    context = multiprocessing.get_context("spawn")
    print(f"{ROWS} x {TOKENS} tokens, {TRAINED_SHARE:.0%} trained, vocabulary {vocabulary:,}, width {WIDTH}, float32\n")
    print("| way | peak memory above the weights, GiB | CPU seconds |\n|---|---|---|")
    for way in WAYS:
        results = context.Queue()
        process = context.Process(target=measure, args=(way, vocabulary, results))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{way}: the process ended with {process.exitcode}")
        name, mebibytes, seconds = results.get()
        print(f"| {name} | {mebibytes / 1024:.2f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
