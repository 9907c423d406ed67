"""What a layer does between its matmuls, forward and backward, a pass over memory each: import it only with Numba.

float32, one thread. NaN stays NaN.
"""

from __future__ import annotations

import numpy as np
from numpy import float32, int32

from rti_exp.compiled_qwen3.compilation import compiled

Array = np.ndarray


@compiled
def norm(states_ND: Array, epsilon: float, made_ND: Array, scales_N: Array) -> None:
    """x / rms(x), and 1 / rms(x)."""
    for n in range(len(states_ND)):
        states, made = states_ND[n], made_ND[n]
        total = float32(0)
        for d in range(len(states)):
            total += states[d] * states[d]
        scale = float32(1 / np.sqrt(total / len(states) + epsilon))
        for d in range(len(states)):
            made[d] = states[d] * scale
        scales_N[n] = scale


@compiled
def norm_backward(normed_ND: Array, scales_N: Array, gradient_ND: Array) -> None:
    """In place the gradient of x from that of n = x / rms(x): (g - n mean(n g)) / rms(x)."""
    for n in range(len(normed_ND)):
        normed, gradient, scale = normed_ND[n], gradient_ND[n], scales_N[n]
        along = float32(0)
        for d in range(len(normed)):
            along += normed[d] * gradient[d]
        along = float32(along / len(normed))
        for d in range(len(normed)):
            gradient[d] = (gradient[d] - normed[d] * along) * scale


@compiled
def gate(gate_and_up_NF: Array, made_NG: Array) -> None:
    """silu(first half of the columns) * second half; G = F / 2."""
    half = made_NG.shape[1]
    bits = np.empty(half, int32)
    for n in range(len(made_NG)):
        both, made = gate_and_up_NF[n], made_NG[n]
        states, up = both[:half], both[half:]
        for f in range(half):
            made[f] = -states[f]
        exponentials(made, bits, bits.view(float32))
        for f in range(half):
            made[f] = states[f] / (float32(1) + made[f]) * up[f]


@compiled
def gate_backward(gate_and_up_NF: Array, gradient_NG: Array, made_NF: Array) -> None:
    """The gradient of `gate_and_up_NF`: of silu it is s + x s (1 - s), s the sigmoid."""
    half = gradient_NG.shape[1]
    bits, shares = np.empty(half, int32), np.empty(half, float32)
    for n in range(len(gradient_NG)):
        both, gradient, made = gate_and_up_NF[n], gradient_NG[n], made_NF[n]
        states, up, made_gate, made_up = both[:half], both[half:], made[:half], made[half:]
        for f in range(half):
            shares[f] = -states[f]
        exponentials(shares, bits, bits.view(float32))
        for f in range(half):
            shares[f] = float32(1) / (float32(1) + shares[f])
        for f in range(half):
            made_up[f] = gradient[f] * states[f] * shares[f]
        for f in range(half):
            slope = shares[f] + states[f] * shares[f] * (float32(1) - shares[f])
            made_gate[f] = gradient[f] * up[f] * slope


@compiled
def turn(heads_NAW: Array, weight_MW: Array, cos_NP: Array, sin_NP: Array, epsilon: float, made_NAW: Array) -> None:
    """The first M heads normed, times their weights, and rotated; the others as they are."""
    count, half = len(weight_MW), cos_NP.shape[1]
    for n in range(len(heads_NAW)):
        cos, sin = cos_NP[n], sin_NP[n]
        for a in range(count):
            head, weight, made = heads_NAW[n, a], weight_MW[a], made_NAW[n, a]
            total = float32(0)
            for w in range(2 * half):
                total += head[w] * head[w]
            scale = float32(1 / np.sqrt(total / len(head) + epsilon))
            for p in range(half):
                one, other = head[p] * weight[p] * scale, head[half + p] * weight[half + p] * scale
                made[p] = one * cos[p] - other * sin[p]
                made[half + p] = other * cos[p] + one * sin[p]
        made_NAW[n, count:] = heads_NAW[n, count:]


@compiled
def turn_backward(
    heads_NAW: Array,
    weight_MW: Array,
    cos_NP: Array,
    sin_NP: Array,
    epsilon: float,
    gradient_NAW: Array,
    weight_gradient_MW: Array,
) -> None:
    """In place the gradient of the heads; that of the weights is added."""
    count, half = len(weight_MW), cos_NP.shape[1]
    for n in range(len(heads_NAW)):
        cos, sin = cos_NP[n], sin_NP[n]
        for a in range(count):
            head, weight, gradient, made = heads_NAW[n, a], weight_MW[a], gradient_NAW[n, a], weight_gradient_MW[a]
            total = float32(0)
            for w in range(2 * half):
                total += head[w] * head[w]
            scale = float32(1 / np.sqrt(total / len(head) + epsilon))
            along = float32(0)
            for p in range(half):
                one = gradient[p] * cos[p] + gradient[half + p] * sin[p]
                other = gradient[half + p] * cos[p] - gradient[p] * sin[p]
                made[p] += one * head[p] * scale
                made[half + p] += other * head[half + p] * scale
                one, other = one * weight[p], other * weight[half + p]
                along += one * head[p] + other * head[half + p]
                gradient[p], gradient[half + p] = one, other
            along = float32(along * scale * scale / len(head))
            for w in range(2 * half):
                gradient[w] = (gradient[w] - head[w] * along) * scale


@compiled
def choose(logits_NV: Array, targets_N: Array, log_probs_N: Array, entropies_N: Array, probabilities_NV: Array) -> None:
    """The target's log-prob, the entropy and the probabilities of each row."""
    bits = np.empty(logits_NV.shape[1], int32)
    for n in range(len(logits_NV)):
        logits, powers = logits_NV[n], probabilities_NV[n]
        best = logits[0]
        for v in range(len(logits)):
            best = logits[v] if logits[v] > best else best
        for v in range(len(logits)):
            powers[v] = logits[v] - best
        exponentials(powers, bits, bits.view(float32))
        total = float32(0)
        mixed = float32(0)
        for v in range(len(logits)):
            below = logits[v] - best
            # A probability of 0 contributes 0, not 0 * -inf.
            below = float32(-87) if below < float32(-87) else below
            total += powers[v]
            mixed += powers[v] * below
        over = float32(1) / total
        for v in range(len(logits)):
            powers[v] *= over
        normalizer = float32(np.log(total))
        log_probs_N[n] = logits[targets_N[n]] - best - normalizer
        entropies_N[n] = normalizer - mixed * over


@compiled
def choose_backward(probabilities_NV: Array, targets_N: Array, gradient_N: Array, made_NV: Array) -> None:
    """gradient * (onehot(target) - probabilities)."""
    for n in range(len(made_NV)):
        probabilities, made, factor = probabilities_NV[n], made_NV[n], -gradient_N[n]
        for v in range(len(made)):
            made[v] = probabilities[v] * factor
        made[targets_N[n]] -= factor


@compiled
def exponentials(line: Array, bits: Array, powers: Array) -> None:
    """exp in place, between -87 and 88; NaN stays NaN. By Cephes' expf; `powers` is `bits` seen as floats."""
    for i in range(len(line)):
        x = line[i]
        x = float32(-87) if x < float32(-87) else x
        x = float32(88) if x > float32(88) else x
        z = np.floor(x * float32(1.44269504) + float32(0.5))
        x = x - z * float32(0.693359375) - z * float32(-2.12194440e-4)
        y = float32(1.9875691500e-4) * x + float32(1.3981999507e-3)
        y = y * x + float32(8.3334519073e-3)
        y = y * x + float32(4.1665795894e-2)
        y = y * x + float32(1.6666665459e-1)
        y = y * x + float32(5.0000001201e-1)
        line[i] = y * x * x + x + float32(1)
        bits[i] = (int32(z) + int32(127)) << int32(23)
    for i in range(len(line)):
        line[i] *= powers[i]
