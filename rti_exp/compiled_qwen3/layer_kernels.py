"""The update's steps between matmuls, forward and backward, each one pass over memory. Importing it needs Numba.

float32, one thread; NaN stays NaN.
"""

from __future__ import annotations

import numpy as np
from numpy import float32, int32

from rti_exp.compiled_qwen3.numba_compiler import compiled

Array = np.ndarray


@compiled
def norm(states_ND: Array, epsilon: float, normed_ND: Array, scales_N: Array) -> None:
    """x / rms(x), and 1 / rms(x)."""
    for n in range(len(states_ND)):
        states, normed = states_ND[n], normed_ND[n]
        total = float32(0)
        for d in range(len(states)):
            total += states[d] * states[d]
        scale = float32(1 / np.sqrt(total / len(states) + epsilon))
        for d in range(len(states)):
            normed[d] = states[d] * scale
        scales_N[n] = scale


@compiled
def norm_backward(normed_ND: Array, scales_N: Array, gradient_ND: Array) -> None:
    """Turns the gradient of n = x / rms(x) into that of x, in place: (g - n mean(n g)) / rms(x)."""
    for n in range(len(normed_ND)):
        normed, gradient, scale = normed_ND[n], gradient_ND[n], scales_N[n]
        along = float32(0)
        for d in range(len(normed)):
            along += normed[d] * gradient[d]
        along = float32(along / len(normed))
        for d in range(len(normed)):
            gradient[d] = (gradient[d] - normed[d] * along) * scale


@compiled
def gate(gate_and_up_NF: Array, gated_NG: Array) -> None:
    """silu(first half of the columns) * second half; G = F / 2."""
    half = gated_NG.shape[1]
    bits = np.empty(half, int32)
    for n in range(len(gated_NG)):
        both, gated = gate_and_up_NF[n], gated_NG[n]
        states, up = both[:half], both[half:]
        for f in range(half):
            gated[f] = -states[f]
        exponentials(gated, bits, bits.view(float32))
        for f in range(half):
            gated[f] = states[f] / (float32(1) + gated[f]) * up[f]


@compiled
def gate_backward(gate_and_up_NF: Array, gradient_NG: Array, gradient_NF: Array) -> None:
    """The gradient of `gate_and_up_NF`; silu's slope is s + x s (1 - s), with s the sigmoid."""
    half = gradient_NG.shape[1]
    bits, shares = np.empty(half, int32), np.empty(half, float32)
    for n in range(len(gradient_NG)):
        both, gradient, inputs = gate_and_up_NF[n], gradient_NG[n], gradient_NF[n]
        states, up, gate_gradient, up_gradient = both[:half], both[half:], inputs[:half], inputs[half:]
        for f in range(half):
            shares[f] = -states[f]
        exponentials(shares, bits, bits.view(float32))
        for f in range(half):
            shares[f] = float32(1) / (float32(1) + shares[f])
        for f in range(half):
            up_gradient[f] = gradient[f] * states[f] * shares[f]
        for f in range(half):
            slope = shares[f] + states[f] * shares[f] * (float32(1) - shares[f])
            gate_gradient[f] = gradient[f] * up[f] * slope


@compiled
def rotate(heads_NAW: Array, weight_MW: Array, cos_NP: Array, sin_NP: Array, epsilon: float, outputs: Array) -> None:
    """The first M heads normed, times their weights, and rotated; the others copied. `outputs` is [N, A, W]."""
    count, half = len(weight_MW), cos_NP.shape[1]
    for n in range(len(heads_NAW)):
        cos, sin = cos_NP[n], sin_NP[n]
        for a in range(count):
            head, weight, output = heads_NAW[n, a], weight_MW[a], outputs[n, a]
            total = float32(0)
            for w in range(2 * half):
                total += head[w] * head[w]
            scale = float32(1 / np.sqrt(total / len(head) + epsilon))
            for p in range(half):
                first, second = head[p] * weight[p] * scale, head[half + p] * weight[half + p] * scale
                output[p] = first * cos[p] - second * sin[p]
                output[half + p] = second * cos[p] + first * sin[p]
        outputs[n, count:] = heads_NAW[n, count:]


@compiled
def rotate_backward(
    heads_NAW: Array,
    weight_MW: Array,
    cos_NP: Array,
    sin_NP: Array,
    epsilon: float,
    gradient_NAW: Array,
    weight_gradient_MW: Array,
) -> None:
    """Turns the gradient of the outputs into that of the heads, in place, and adds that of the weights."""
    count, half = len(weight_MW), cos_NP.shape[1]
    for n in range(len(heads_NAW)):
        cos, sin = cos_NP[n], sin_NP[n]
        for a in range(count):
            head, weight, gradient, sums = heads_NAW[n, a], weight_MW[a], gradient_NAW[n, a], weight_gradient_MW[a]
            total = float32(0)
            for w in range(2 * half):
                total += head[w] * head[w]
            scale = float32(1 / np.sqrt(total / len(head) + epsilon))
            along = float32(0)
            for p in range(half):
                first = gradient[p] * cos[p] + gradient[half + p] * sin[p]
                second = gradient[half + p] * cos[p] - gradient[p] * sin[p]
                sums[p] += first * head[p] * scale
                sums[half + p] += second * head[half + p] * scale
                first, second = first * weight[p], second * weight[half + p]
                along += first * head[p] + second * head[half + p]
                gradient[p], gradient[half + p] = first, second
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
def choose_backward(probabilities_NV: Array, targets_N: Array, gradient_N: Array, logits_gradient_NV: Array) -> None:
    """gradient * (onehot(target) - probabilities)."""
    for n in range(len(logits_gradient_NV)):
        probabilities, output, factor = probabilities_NV[n], logits_gradient_NV[n], -gradient_N[n]
        for v in range(len(output)):
            output[v] = probabilities[v] * factor
        output[targets_N[n]] -= factor


@compiled
def exponentials(line: Array, bits: Array, powers: Array) -> None:
    """exp in place, arguments clipped to -87 and 88, by Cephes' expf. `powers` is the memory of `bits` as float32."""
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
