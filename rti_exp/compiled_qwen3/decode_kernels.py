"""What a decode step does between its matmuls, on one core in float32: compiled, each a single pass over memory.

Keys are stored [slots, key heads, W, length], so that the scores of one query are sums of whole rows; values
[slots, key heads, length, W]. A token attends to the positions of its own slot up to its own: no mask, no padding.
"""

from __future__ import annotations

import numpy as np

from rti_exp.compiled_qwen3.compilation import compiled

Array = np.ndarray

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
    """exp of the first `count` of `values`, in place: 0 below -87, exp(88) above 88, NaN of NaN.

    `powers`: int32 scratch of the same length.
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
def norm(states_ND: Array, weight_D: Array, epsilon: float, made_ND: Array) -> None:
    """x / rms(x) * weight into `made_ND`."""
    width = _F(states_ND.shape[1])
    for n in range(len(states_ND)):
        row, made = states_ND[n], made_ND[n]
        squares = _F(0.0)
        for d in range(len(row)):
            squares += row[d] * row[d]
        scale = _F(1.0) / np.sqrt(squares / width + _F(epsilon))
        for d in range(len(row)):
            made[d] = row[d] * scale * weight_D[d]


@compiled
def gate(gates_NF: Array, ups_NF: Array, made_NF: Array, powers: Array) -> None:
    """silu(gate) * up into `made_NF`; `powers`: int32 scratch, one for each column."""
    columns = made_NF.shape[1]
    for n in range(len(made_NF)):
        gates, ups, made = gates_NF[n], ups_NF[n], made_NF[n]
        for f in range(columns):
            made[f] = -gates[f]
        exponentials(made, powers, columns)
        for f in range(columns):
            made[f] = gates[f] * ups[f] / (_F(1.0) + made[f])


@compiled
def _turned(head_W: Array, weight_W: Array, cosine_P: Array, sine_P: Array, epsilon: float) -> None:
    """A head normed and rotated, in place."""
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
def _weighted(weights_L: Array, values_LW: Array, count: int, made_W: Array) -> None:
    """Sum of the first `count` rows of `values_LW`, each times its weight."""
    width = len(made_W)
    for d in range(width):
        made_W[d] = _F(0.0)
    whole = count - count % _UNROLLED
    for j in range(0, whole, _UNROLLED):
        a0, a1, a2, a3 = weights_L[j], weights_L[j + 1], weights_L[j + 2], weights_L[j + 3]
        a4, a5, a6, a7 = weights_L[j + 4], weights_L[j + 5], weights_L[j + 6], weights_L[j + 7]
        v0, v1, v2, v3 = values_LW[j], values_LW[j + 1], values_LW[j + 2], values_LW[j + 3]
        v4, v5, v6, v7 = values_LW[j + 4], values_LW[j + 5], values_LW[j + 6], values_LW[j + 7]
        for d in range(width):
            made_W[d] += (
                a0 * v0[d] + a1 * v1[d] + a2 * v2[d] + a3 * v3[d] + a4 * v4[d] + a5 * v5[d] + a6 * v6[d] + a7 * v7[d]
            )
    for j in range(whole, count):
        a, row = weights_L[j], values_LW[j]
        for d in range(width):
            made_W[d] += a * row[d]


@compiled
def store(
    queries_NHW: Array,
    keys_NKW: Array,
    values_NKW: Array,
    query_norm_W: Array,
    key_norm_W: Array,
    cosine_LP: Array,
    sine_LP: Array,
    epsilon: float,
    slots_N: Array,
    positions_N: Array,
    keys: Array,
    values: Array,
) -> None:
    """Norm and rotate each token's queries and keys in place, and put its keys and values where it stands.

    Args:
        queries_NHW, keys_NKW, values_NKW: as projected; H is a multiple of K. Rows behind the N tokens are padding.
        query_norm_W, key_norm_W: weights of the heads' norms.
        cosine_LP, sine_LP: of each position's angles, P = W / 2.
        epsilon: of the norms.
        slots_N, positions_N: where each token stands.
        keys, values: this layer's, [slots, K, W, length] and [slots, K, length, W].
    """
    for n in range(len(slots_N)):
        slot, position = slots_N[n], positions_N[n]
        cosine, sine = cosine_LP[position], sine_LP[position]
        for h in range(queries_NHW.shape[1]):
            _turned(queries_NHW[n, h], query_norm_W, cosine, sine, epsilon)
        for k in range(keys_NKW.shape[1]):
            key, value = keys_NKW[n, k], values_NKW[n, k]
            _turned(key, key_norm_W, cosine, sine, epsilon)
            for d in range(len(key)):
                keys[slot, k, d, position] = key[d]
                values[slot, k, position, d] = value[d]


@compiled
def attend(
    queries_NHW: Array,
    rows_M: Array,
    scaling: float,
    slots_N: Array,
    positions_N: Array,
    keys: Array,
    values: Array,
    scores: Array,
    powers: Array,
    made_MHW: Array,
) -> None:
    """softmax(q k^T * scaling) v of the tokens `rows_M`, over their slots up to their own positions.

    Args:
        queries_NHW: as `store` left them.
        rows_M: which of the N tokens.
        scaling: of the scores.
        slots_N, positions_N, keys, values: as of `store`, with all that these tokens see stored.
        scores, powers: float32 and int32 scratch for the most positions.
        made_MHW: what the query heads found.
    """
    heads = made_MHW.shape[1]
    group = heads // keys.shape[1]
    for m in range(len(rows_M)):
        n = rows_M[m]
        slot, count = slots_N[n], positions_N[n] + 1
        for h in range(heads):
            made_W = made_MHW[m, h]
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
            _weighted(scores, values[slot, h // group], count, made_W)
            for d in range(len(made_W)):
                made_W[d] /= total


@compiled
def copy(keys: Array, values: Array, sources: Array, targets: Array, length: int) -> None:
    """The first `length` positions of each source slot into the target slot beside it; no target is a source."""
    for pair in range(len(sources)):
        source, target = sources[pair], targets[pair]
        for k in range(keys.shape[1]):
            for d in range(keys.shape[2]):
                one, other = keys[source, k, d], keys[target, k, d]
                for j in range(length):
                    other[j] = one[j]
            for j in range(length):
                one, other = values[source, k, j], values[target, k, j]
                for d in range(values.shape[3]):
                    other[d] = one[d]


@compiled
def _drawn(probabilities_V: Array, target: float, size: int) -> int:
    """The first token at which the sum passes `target`; the last that may be drawn if rounding keeps it from that."""
    passed, last = 0.0, size - 1
    for v in range(size):
        if probabilities_V[v] > 0:
            last = v
        passed += probabilities_V[v]
        if passed > target:
            return v
    return last


@compiled
def advance(
    logits_BV: Array,
    uniforms_M: Array,
    temperatures_M: Array,
    members_B: Array,
    stops_KV: Array,
    stop_sets_M: Array,
    limits_M: Array,
    step: int,
    tokens_B: Array,
    positions_B: Array,
    running_B: Array,
    counts_M: Array,
    ids_M: Array,
    log_probs_M: Array,
    scratch_V: Array,
    powers_V: Array,
) -> int:
    """Draw each row's next token and note it; how many rows still run.

    As `rti_exp.engines.sampling.Sampler` draws, and what `DecodeBatch` keeps of it. Rows are numbered by member, of M
    that began.

    Args:
        logits_BV: of the rows that are left.
        uniforms_M: a number in [0, 1) for each member.
        temperatures_M: 0 takes the likeliest token.
        members_B: whose rows these are.
        stops_KV: sets of tokens that end a row.
        stop_sets_M, limits_M: each member's set, and most tokens.
        step: tokens that each row had before.
        tokens_B, positions_B, running_B, counts_M: brought up to date; all ran until now.
        ids_M, log_probs_M: this step's token of each member, and its log-prob at temperature 1.
        scratch_V, powers_V: float32 and int32.
    """
    left, size = 0, logits_BV.shape[1]
    for b in range(len(logits_BV)):
        row, member = logits_BV[b], members_B[b]
        best = 0
        for v in range(size):
            if row[v] > row[best]:
                best = v
        largest, temperature = row[best], temperatures_M[member]
        for v in range(size):
            scratch_V[v] = row[v] - largest
        exponentials(scratch_V, powers_V, size)
        total = 0.0
        for v in range(size):
            total += scratch_V[v]
        log_total = np.log(total)
        chosen = best
        if temperature > 0:
            if temperature != 1:
                for v in range(size):
                    scratch_V[v] = (row[v] - largest) / temperature
                exponentials(scratch_V, powers_V, size)
                total = 0.0
                for v in range(size):
                    total += scratch_V[v]
            chosen = _drawn(scratch_V, uniforms_M[member] * total, size)
        ids_M[member] = chosen
        log_probs_M[member] = _F(row[chosen] - largest - log_total)
        tokens_B[b] = chosen
        positions_B[b] += 1
        counts_M[member] += 1
        running_B[b] = not stops_KV[stop_sets_M[member], chosen] and limits_M[member] > step + 1
        left += running_B[b]
    return left
