"""The steps of decoding between matmuls, each one pass over memory. Importing it needs Numba.

Keys are stored as [slots, key heads, W, length], so that the scores of a query are sums of whole rows; values as
[slots, key heads, length, W]. A token attends to the positions of its slot up to its own: no mask, no padding.
float32, one thread; NaN stays NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rti_exp.compiled_qwen3.numba_compiler import compiled

Array = np.ndarray
Arrays = tuple[Array, Array]

_F = np.float32
_LOG2_E = _F(1.4426950408889634)
# ln 2 in two parts, and exp on [-ln 2 / 2, ln 2 / 2]: the polynomial of Cephes' expf, to 4e-7 of the value.
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)
_C0, _C1, _C2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_C3, _C4, _C5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)
_LOWEST, _HIGHEST = _F(-87.0), _F(88.0)
_UNROLLED = 8


@compiled
def exponentials(values: Array, powers: Array, count: int) -> None:
    """exp of the first `count` of `values`, in place: 0 below -87, exp(88) above 88.

    `powers` is int32 scratch of the same length.
    """
    for j in range(count):
        x = values[j]
        unit = _F(0.0) if x < _LOWEST else _F(1.0)
        x = _LOWEST if x < _LOWEST else x
        x = _HIGHEST if x > _HIGHEST else x
        whole = np.floor(x * _LOG2_E + _F(0.5))
        x = x - whole * _LN2_HIGH - whole * _LN2_LOW
        y = ((((_C0 * x + _C1) * x + _C2) * x + _C3) * x + _C4) * x + _C5
        values[j] = (y * x * x + x + _F(1.0)) * unit
        powers[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    scale = powers.view(np.float32)
    for j in range(count):
        values[j] *= scale[j]


@compiled
def norm(states_ND: Array, weight_D: Array, epsilon: float, normed_ND: Array) -> None:
    """x / rms(x) * weight."""
    width = _F(states_ND.shape[1])
    for n in range(len(states_ND)):
        row, normed = states_ND[n], normed_ND[n]
        squares = _F(0.0)
        for d in range(len(row)):
            squares += row[d] * row[d]
        scale = _F(1.0) / np.sqrt(squares / width + _F(epsilon))
        for d in range(len(row)):
            normed[d] = row[d] * scale * weight_D[d]


@compiled
def gate(gates_NF: Array, ups_NF: Array, gated_NF: Array, powers: Array) -> None:
    """silu(gate) * up; `powers` is int32 scratch, one for each column."""
    columns = gated_NF.shape[1]
    for n in range(len(gated_NF)):
        gates, ups, gated = gates_NF[n], ups_NF[n], gated_NF[n]
        for f in range(columns):
            gated[f] = -gates[f]
        exponentials(gated, powers, columns)
        for f in range(columns):
            gated[f] = gates[f] * ups[f] / (_F(1.0) + gated[f])


@compiled
def _rotate(head_W: Array, weight_W: Array, cosine_P: Array, sine_P: Array, epsilon: float) -> None:
    """Norms and rotates a head in place."""
    half = len(cosine_P)
    squares = _F(0.0)
    for d in range(len(head_W)):
        squares += head_W[d] * head_W[d]
    scale = _F(1.0) / np.sqrt(squares / _F(len(head_W)) + _F(epsilon))
    for p in range(half):
        first, second = head_W[p] * scale * weight_W[p], head_W[half + p] * scale * weight_W[half + p]
        head_W[p] = first * cosine_P[p] - second * sine_P[p]
        head_W[half + p] = second * cosine_P[p] + first * sine_P[p]


@compiled
def _scores(query_W: Array, keys_WL: Array, scaling: float, scores_L: Array, count: int) -> None:
    for j in range(count):
        scores_L[j] = _F(0.0)
    s = _F(scaling)
    whole = len(query_W) - len(query_W) % _UNROLLED
    for d in range(0, whole, _UNROLLED):
        a0, a1, a2, a3 = query_W[d] * s, query_W[d + 1] * s, query_W[d + 2] * s, query_W[d + 3] * s
        a4, a5, a6, a7 = query_W[d + 4] * s, query_W[d + 5] * s, query_W[d + 6] * s, query_W[d + 7] * s
        k0, k1, k2, k3 = keys_WL[d], keys_WL[d + 1], keys_WL[d + 2], keys_WL[d + 3]
        k4, k5, k6, k7 = keys_WL[d + 4], keys_WL[d + 5], keys_WL[d + 6], keys_WL[d + 7]
        for j in range(count):
            scores_L[j] += (
                a0 * k0[j] + a1 * k1[j] + a2 * k2[j] + a3 * k3[j] + a4 * k4[j] + a5 * k5[j] + a6 * k6[j] + a7 * k7[j]
            )
    for d in range(whole, len(query_W)):
        a, row = query_W[d] * s, keys_WL[d]
        for j in range(count):
            scores_L[j] += a * row[j]


@compiled
def _weighted_sum(weights_L: Array, values_LW: Array, count: int, sum_W: Array) -> None:
    """The sum of the first `count` rows of `values_LW`, each times its weight."""
    width = len(sum_W)
    for d in range(width):
        sum_W[d] = _F(0.0)
    whole = count - count % _UNROLLED
    for j in range(0, whole, _UNROLLED):
        a0, a1, a2, a3 = weights_L[j], weights_L[j + 1], weights_L[j + 2], weights_L[j + 3]
        a4, a5, a6, a7 = weights_L[j + 4], weights_L[j + 5], weights_L[j + 6], weights_L[j + 7]
        v0, v1, v2, v3 = values_LW[j], values_LW[j + 1], values_LW[j + 2], values_LW[j + 3]
        v4, v5, v6, v7 = values_LW[j + 4], values_LW[j + 5], values_LW[j + 6], values_LW[j + 7]
        for d in range(width):
            sum_W[d] += (
                a0 * v0[d] + a1 * v1[d] + a2 * v2[d] + a3 * v3[d] + a4 * v4[d] + a5 * v5[d] + a6 * v6[d] + a7 * v7[d]
            )
    for j in range(whole, count):
        a, row = weights_L[j], values_LW[j]
        for d in range(width):
            sum_W[d] += a * row[d]


@compiled
def store(
    queries_NHW: Array,
    keys_NKW: Array,
    values_NKW: Array,
    norm_weights: Arrays,
    angles: Arrays,
    epsilon: float,
    places: Arrays,
    cache: Arrays,
) -> None:
    """Norms and rotates each token's queries and keys in place, and stores its keys and values in the cache.

    Args:
        queries_NHW, keys_NKW, values_NKW: as projected; H is a multiple of K. Rows behind the N tokens are padding.
        norm_weights: of queries and keys, [W] each.
        angles: cosine and sine for each position, [length, W / 2] each.
        epsilon: of the norms.
        places: slot and position of each token, [N] each.
        cache: the layer's keys [slots, K, W, length] and values [slots, K, length, W].
    """
    (query_norm_W, key_norm_W), (cosine_LP, sine_LP) = norm_weights, angles
    (slots_N, positions_N), (keys, values) = places, cache
    for n in range(len(slots_N)):
        slot, position = slots_N[n], positions_N[n]
        cosine, sine = cosine_LP[position], sine_LP[position]
        for h in range(queries_NHW.shape[1]):
            _rotate(queries_NHW[n, h], query_norm_W, cosine, sine, epsilon)
        for k in range(keys_NKW.shape[1]):
            key, value = keys_NKW[n, k], values_NKW[n, k]
            _rotate(key, key_norm_W, cosine, sine, epsilon)
            for d in range(len(key)):
                keys[slot, k, d, position] = key[d]
                values[slot, k, position, d] = value[d]


@compiled
def attend(
    queries_NHW: Array, rows_M: Array, scaling: float, places: Arrays, cache: Arrays, scratch: Arrays, outputs: Array
) -> None:
    """softmax(q k^T * scaling) v of the tokens `rows_M`, over their slots up to their own positions.

    Args:
        queries_NHW: as `store` left them.
        rows_M: which of the N tokens.
        scaling: of the scores.
        places, cache: as of `store`, which must have stored every position that these tokens attend to.
        scratch: float32 and int32, one for each position.
        outputs: [M, H, W].
    """
    (slots_N, positions_N), (keys, values), (scores, powers) = places, cache, scratch
    heads = outputs.shape[1]
    group = heads // keys.shape[1]
    for m in range(len(rows_M)):
        n = rows_M[m]
        slot, count = slots_N[n], positions_N[n] + 1
        for h in range(heads):
            output_W = outputs[m, h]
            _scores(queries_NHW[n, h], keys[slot, h // group], scaling, scores, count)
            largest = scores[0]
            for j in range(count):
                largest = max(largest, scores[j])
            for j in range(count):
                scores[j] -= largest
            exponentials(scores, powers, count)
            total = _F(0.0)
            for j in range(count):
                total += scores[j]
            _weighted_sum(scores, values[slot, h // group], count, output_W)
            for d in range(len(output_W)):
                output_W[d] /= total


@compiled
def copy(keys: Array, values: Array, sources: Array, targets: Array, length: int) -> None:
    """Copies the first `length` positions of each source slot to its target slot; no target is a source."""
    for pair in range(len(sources)):
        source, target = sources[pair], targets[pair]
        for k in range(keys.shape[1]):
            for d in range(keys.shape[2]):
                from_row, to_row = keys[source, k, d], keys[target, k, d]
                for j in range(length):
                    to_row[j] = from_row[j]
            for j in range(length):
                from_row, to_row = values[source, k, j], values[target, k, j]
                for d in range(values.shape[3]):
                    to_row[d] = from_row[d]


@compiled
def _sampled(probabilities_V: Array, target: float, size: int) -> int:
    """The first token at which the sum passes `target`; the last possible token if rounding prevents that."""
    total, last = 0.0, size - 1
    for v in range(size):
        if probabilities_V[v] > 0:
            last = v
        total += probabilities_V[v]
        if total > target:
            return v
    return last


class Rows(NamedTuple):
    """The rows that still decode; a member is one of the M rows that began."""

    members_B: Array
    tokens_B: Array
    positions_B: Array
    running_B: Array


class Sampling(NamedTuple):
    """How each member draws: numbers in [0, 1), temperature (0: greedy), most tokens, tokens that end it."""

    uniforms_M: Array
    temperatures_M: Array
    limits_M: Array
    stops_MV: Array


class Outputs(NamedTuple):
    """A step's token, its log-prob in the distribution that sampled it, and each member's count of tokens."""

    ids_M: Array
    log_probs_M: Array
    counts_M: Array


@compiled
def advance(
    logits_BV: Array, step: int, rows: Rows, sampling: Sampling, outputs: Outputs, scratch: tuple[Array, Array]
) -> int:
    """Draws the next token of each row, and updates `rows` and `outputs`; the number of rows that continue.

    Draws as `rti_exp.engines.sampling.Sampler`.

    Args:
        logits_BV: of the rows, all of which are running.
        step: tokens that each row had before.
        rows, sampling, outputs: see there.
        scratch: float32 and int32, one for each vocabulary entry.
    """
    (scratch_V, powers_V), left, size = scratch, 0, logits_BV.shape[1]
    for b in range(len(logits_BV)):
        row, member = logits_BV[b], rows.members_B[b]
        best = 0
        for v in range(size):
            if row[v] > row[best]:
                best = v
        largest, temperature = row[best], sampling.temperatures_M[member]
        for v in range(size):
            scratch_V[v] = row[v] - largest
        exponentials(scratch_V, powers_V, size)
        total = 0.0
        for v in range(size):
            total += scratch_V[v]
        scale = 1.0
        chosen = best
        if temperature > 0:
            if temperature != 1:
                scale = temperature
                for v in range(size):
                    scratch_V[v] = (row[v] - largest) / temperature
                exponentials(scratch_V, powers_V, size)
                total = 0.0
                for v in range(size):
                    total += scratch_V[v]
            chosen = _sampled(scratch_V, sampling.uniforms_M[member] * total, size)
        outputs.ids_M[member] = chosen
        outputs.log_probs_M[member] = _F((row[chosen] - largest) / scale - np.log(total))
        outputs.counts_M[member] += 1
        rows.tokens_B[b] = chosen
        rows.positions_B[b] += 1
        rows.running_B[b] = not sampling.stops_MV[member, chosen] and sampling.limits_M[member] > step + 1
        left += rows.running_B[b]
    return left
