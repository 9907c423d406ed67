"""Attention over packed tokens, forward and backward. Importing it needs Numba.

A packed token has one context, whichever rows contain it, so each token is computed once. The queries of a block of
tokens, of all heads that share a key head, are lanes: adjacent in memory, one line for each component. Matmuls are
`tile`s, whose sums stay in registers. float32, one thread; NaN stays NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy import float32, int32

from rti_exp.compiled_qwen3.numba_compiler import compiled

WIDTH_STEP = 32
"""A head's width must be a multiple of this."""
LANES = 128
"""The most queries of a block; a multiple of 32."""
_VECTOR, _INT = ir.VectorType(ir.FloatType(), 16), ir.IntType(64)
_ZERO = ir.Constant(_VECTOR, [0.0] * 16)
Array = np.ndarray


def _tile(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    """The LLVM code of `tile`, since LLVM makes no register tiles of loops."""
    factors, line, term, lanes, width, terms, sums_at, sums_step = arguments

    def at(base: Any, steps: Any, step: Any, kind: Any) -> Any:
        return builder.inttoptr(builder.add(base, builder.mul(builder.mul(steps, step), _INT(4))), kind.as_pointer())

    before, loop, after = builder.block, builder.append_basic_block("terms"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    index, sums = builder.phi(_INT), [builder.phi(_VECTOR) for _ in range(16)]
    lanes_here = builder.add(lanes, builder.mul(builder.mul(index, width), _INT(4)))
    halves = [builder.load(at(lanes_here, _INT(half), _INT(16), _VECTOR), align=4) for half in range(2)]
    factors_here = builder.add(factors, builder.mul(builder.mul(index, term), _INT(4)))
    next_sums = []
    for number in range(16):
        factor = builder.load(at(factors_here, _INT(number // 2), line, ir.FloatType()), align=4)
        single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), factor, ir.IntType(32)(0))
        spread = builder.shuffle_vector(single, single, ir.Constant(ir.VectorType(ir.IntType(32), 16), [0] * 16))
        product = builder.fmul(spread, halves[number % 2], flags=("contract",))
        next_sums.append(builder.fadd(product, sums[number], flags=("contract",)))
    next_index = builder.add(index, _INT(1))
    builder.cbranch(builder.icmp_signed("<", next_index, terms), loop, after)
    for phi, first, following in [
        (index, _INT(0), next_index),
        *((total, _ZERO, next_total) for total, next_total in zip(sums, next_sums, strict=True)),
    ]:
        phi.add_incoming(first, before)
        phi.add_incoming(following, loop)
    builder.position_at_end(after)
    for number in range(16):
        place = builder.add(sums_at, _INT(64 * (number % 2)))
        builder.store(next_sums[number], at(place, _INT(number // 2), sums_step, _VECTOR), align=4)
    return context.get_dummy_value()


def _typed_tile(
    _typing: Any, factors: Any, line: Any, term: Any, lanes: Any, width: Any, terms: Any, sums_at: Any, sums_step: Any
) -> Any:
    return types.void(*(types.int64,) * 8), _tile


tile: Any = intrinsic(_typed_tile)
"""tile(factors, line, term, lanes, width, terms, sums_at, sums_step), all integers:

sums[e, i] = sum over t of factors[e, t] * lanes[t, i], for 8 values of e, 32 of i and `terms` (at least one) of t.
`factors`, `lanes` and `sums_at` are addresses. The steps of e and t in the factors are `line` and `term`, that of t in
the lanes is `width`, that of e in the sums is `sums_step`; steps are counted in floats.
"""


@compiled
def attend(
    heads_NAW: Array,
    rows_R4: Array,
    tokens_P: Array,
    key_heads: int,
    scale: float,
    attended_NHW: Array,
    normalizers_NH: Array,
) -> None:
    """softmax(q k^T scale) v of each token, over the tokens of its row up to itself.

    Args:
        heads_NAW: queries, keys, values of all tokens; W is a multiple of `WIDTH_STEP`.
        rows_R4, tokens_P: see `rti_exp.compiled_qwen3.packing.Packing`.
        key_heads: how many of the A heads are keys; as many are values.
        scale: factor of the scores.
        attended_NHW: output.
        normalizers_NH: output, the logarithms of the sums of the exponentials.
    """
    heads, width = attended_NHW.shape[1], attended_NHW.shape[2]
    group = heads // key_heads
    block = max(LANES // group, 1)
    lanes = (block * group + 31) // 32 * 32 + 16  # not a power of two: lines would compete for the same cache sets
    longest = (np.max(rows_R4[:, 1]) + 7) // 8 * 8
    keys, values = np.zeros((longest, width), float32), np.zeros((longest, width), float32)
    lines, transposed = np.zeros((lanes, width), float32), np.zeros((width, lanes), float32)
    weights, best, sums = np.zeros((longest, lanes), float32), np.zeros(lanes, float32), np.zeros(lanes, float32)
    bits = np.zeros(lanes, int32)
    for row in range(len(rows_R4)):
        start, length, shared, token = rows_R4[row]
        for head in range(key_heads):
            gather(heads_NAW, tokens_P, start, length, heads + head, keys)
            gather(heads_NAW, tokens_P, start, length, heads + key_heads + head, values)
            for first in range(shared, length, block):
                last = min(first + block, length)
                own, end = token + first - shared, (last - first) * group
                gather_lanes(heads_NAW, own, head * group, group, end, scale, lines)
                transpose(lines, end, transposed)
                scores(keys, transposed, first, last, group, end, weights)
                best[:] = -np.inf
                sums[:] = 0
                for key in range(last):
                    take_maximum(best, weights[key], max(key - first, 0) * group, end)
                for key in range(last):
                    low = max(key - first, 0) * group
                    weights[key, :low] = 0
                    exponentials(weights[key], best, low, end, bits, bits.view(float32), sums)
                weighted_sums(values, weights, first, last, group, end, lines)
                for lane in range(end):
                    at, which = own + lane // group, head * group + lane % group
                    normalizers_NH[at, which] = best[lane] + np.log(sums[lane])
                    scaled(lines[lane], float32(1) / sums[lane], attended_NHW[at, which])


@compiled
def attend_backward(
    heads_NAW: Array,
    rows_R4: Array,
    tokens_P: Array,
    key_heads: int,
    scale: float,
    attended_NHW: Array,
    normalizers_NH: Array,
    gradient_NHW: Array,
    gradient_NAW: Array,
) -> None:
    """Adds the gradients of keys and values to `gradient_NAW` and sets those of queries; otherwise as `attend`."""
    heads, width = attended_NHW.shape[1], attended_NHW.shape[2]
    group = heads // key_heads
    block = max(LANES // group, 1)
    lanes = (block * group + 31) // 32 * 32 + 16  # not a power of two: lines would compete for the same cache sets
    longest = (np.max(rows_R4[:, 1]) + 7) // 8 * 8
    keys, values = np.zeros((longest, width), float32), np.zeros((longest, width), float32)
    queries, transposed = np.zeros((lanes, width), float32), np.zeros((width, lanes), float32)
    gradient, transposed_gradient = np.zeros((lanes, width), float32), np.zeros((width, lanes), float32)
    mixture, eight = np.zeros((lanes, width), float32), np.zeros((8, width), float32)
    weights, slopes = np.zeros((longest, lanes), float32), np.zeros((longest, lanes), float32)
    normalizers, along, sums = np.zeros(lanes, float32), np.zeros(lanes, float32), np.zeros(lanes, float32)
    bits = np.zeros(lanes, int32)
    for row in range(len(rows_R4)):
        start, length, shared, token = rows_R4[row]
        for head in range(key_heads):
            gather(heads_NAW, tokens_P, start, length, heads + head, keys)
            gather(heads_NAW, tokens_P, start, length, heads + key_heads + head, values)
            for first in range(shared, length, block):
                last = min(first + block, length)
                own, end = token + first - shared, (last - first) * group
                gather_lanes(heads_NAW, own, head * group, group, end, scale, queries)
                gather_lanes(gradient_NHW, own, head * group, group, end, float32(1), gradient)
                transpose(queries, end, transposed)
                transpose(gradient, end, transposed_gradient)
                for lane in range(end):
                    at, which = own + lane // group, head * group + lane % group
                    normalizers[lane] = normalizers_NH[at, which]
                    along[lane] = product(attended_NHW[at, which], gradient[lane])
                scores(keys, transposed, first, last, group, end, weights)
                scores(values, transposed_gradient, first, last, group, end, slopes)
                for key in range(last):
                    low = max(key - first, 0) * group
                    exponentials(weights[key], normalizers, low, end, bits, bits.view(float32), sums)
                    score_gradients(weights[key], along, low, end, slopes[key])
                    weights[key, :low] = 0
                    slopes[key, :low] = 0
                weighted_sums(keys, slopes, first, last, group, end, mixture)
                for lane in range(end):
                    scaled(mixture[lane], scale, gradient_NAW[own + lane // group, head * group + lane % group])
                for place in range(0, last, 8):
                    tokens = tokens_P[start + place : start + min(place + 8, last)]
                    low = max(place - first, 0) * group
                    weighted_lines(slopes, place, queries, low, end, eight)
                    scatter_add(eight, tokens, heads + head, gradient_NAW)
                    weighted_lines(weights, place, gradient, low, end, eight)
                    scatter_add(eight, tokens, heads + key_heads + head, gradient_NAW)


@compiled
def scores(keys_LW: Array, lanes_WI: Array, first: int, last: int, group: int, end: int, scores_LI: Array) -> None:
    """Keys times lanes, for the keys up to `last`; keys behind all tokens of 32 lanes are skipped."""
    width, step = lanes_WI.shape
    for lane in range(0, end, 32):
        seen = min(last, first + (lane + 31) // group + 1)
        for key in range(0, seen, 8):
            factors, lanes = keys_LW.ctypes.data + 4 * key * width, lanes_WI.ctypes.data + 4 * lane
            tile(factors, width, 1, lanes, step, width, scores_LI.ctypes.data + 4 * (key * step + lane), step)


@compiled
def weighted_sums(
    values_LW: Array, weights_LI: Array, first: int, last: int, group: int, end: int, sums_IW: Array
) -> None:
    """sums[i] = the sum of the values, each times lane i's weight."""
    width, step = values_LW.shape[1], weights_LI.shape[1]
    for lane in range(0, end, 8):
        seen = min(last, first + (lane + 7) // group + 1)
        for w in range(0, width, 32):
            factors, place = weights_LI.ctypes.data + 4 * lane, sums_IW.ctypes.data + 4 * (lane * width + w)
            tile(factors, 1, step, values_LW.ctypes.data + 4 * w, width, seen, place, width)


@compiled
def weighted_lines(weights_LI: Array, key: int, lines_IW: Array, low: int, end: int, sums_8W: Array) -> None:
    """For each of eight keys the sum of the lines of lanes `low` to `end`, each times its weight."""
    step, width = weights_LI.shape[1], lines_IW.shape[1]
    for w in range(0, width, 32):
        factors, lines = weights_LI.ctypes.data + 4 * (key * step + low), lines_IW.ctypes.data + 4 * (low * width + w)
        tile(factors, step, 1, lines, width, end - low, sums_8W.ctypes.data + 4 * w, width)


@compiled
def gather(heads_NAW: Array, tokens_P: Array, start: int, length: int, head: int, lines_LW: Array) -> None:
    for place in range(length):
        lines_LW[place] = heads_NAW[tokens_P[start + place], head]


@compiled
def scatter_add(lines_8W: Array, tokens: Array, head: int, sums_NAW: Array) -> None:
    for number in range(len(tokens)):
        sums, line = sums_NAW[tokens[number], head], lines_8W[number]
        for w in range(len(line)):
            sums[w] += line[w]


@compiled
def gather_lanes(heads_NAW: Array, token: int, head: int, group: int, end: int, scale: float, lines_IW: Array) -> None:
    """The line of each lane, that of token + lane // group, times `scale`."""
    for lane in range(end):
        scaled(heads_NAW[token + lane // group, head + lane % group], scale, lines_IW[lane])


@compiled
def scaled(line_W: Array, scale: float, output_W: Array) -> None:
    for w in range(len(line_W)):
        output_W[w] = line_W[w] * scale


@compiled
def transpose(lines_IW: Array, end: int, columns_WI: Array) -> None:
    for w in range(columns_WI.shape[0]):
        column = columns_WI[w]
        for lane in range(end):
            column[lane] = lines_IW[lane, w]


@compiled
def product(left_W: Array, right_W: Array) -> Any:
    total = float32(0)
    for w in range(len(left_W)):
        total += left_W[w] * right_W[w]
    return total


@compiled
def score_gradients(weights_I: Array, along_I: Array, low: int, end: int, slopes_I: Array) -> None:
    weights, along, slopes = weights_I[low:end], along_I[low:end], slopes_I[low:end]
    for i in range(end - low):
        slopes[i] = weights[i] * (slopes[i] - along[i])


@compiled
def take_maximum(best_I: Array, line_I: Array, low: int, end: int) -> None:
    best, line = best_I[low:end], line_I[low:end]
    for i in range(end - low):
        best[i] = line[i] if line[i] > best[i] else best[i]


@compiled
def exponentials(
    line_I: Array, offsets_I: Array, low: int, end: int, bits_I: Array, powers_I: Array, sums_I: Array
) -> None:
    """exp(line - offset) in place, at least 1.6e-38, also added to the sums; no line value is above its offset.

    Cephes' expf: a polynomial of the remainder, times a power of two that is written into the bits of a float.

    Args:
        low, end: the lanes.
        bits_I, powers_I: int32 scratch, and the same memory as float32.
    """
    line, offsets, sums = line_I[low:end], offsets_I[low:end], sums_I[low:end]
    bits, powers = bits_I[low:end], powers_I[low:end]
    for i in range(end - low):
        x = line[i] - offsets[i]
        x = float32(-87) if x < float32(-87) else x
        z = np.floor(x * float32(1.44269504) + float32(0.5))
        x = x - z * float32(0.693359375) - z * float32(-2.12194440e-4)
        y = float32(1.9875691500e-4) * x + float32(1.3981999507e-3)
        y = y * x + float32(8.3334519073e-3)
        y = y * x + float32(4.1665795894e-2)
        y = y * x + float32(1.6666665459e-1)
        y = y * x + float32(5.0000001201e-1)
        line[i] = y * x * x + x + float32(1)
        bits[i] = (int32(z) + int32(127)) << int32(23)
    for i in range(end - low):
        power = line[i] * powers[i]
        line[i] = power
        sums[i] += power
