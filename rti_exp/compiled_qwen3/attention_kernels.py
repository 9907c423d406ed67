"""Attention over packed tokens, forward and backward, compiled: import it only where Numba is installed.

A packed token has one context, whatever rows it stands in: each is computed once. The queries of a block of tokens, of
all heads that share a key head, are lanes: they lie beside each other in memory, a line for each component. Matmuls are
`tile`s, whose sums stay in registers. float32, one thread; NaN stays NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy import float32, int32

from rti_exp.compiled_qwen3.compilation import compiled

LANES = 128
"""Queries of a block at the most; a multiple of 32."""
_VECTOR, _INT = ir.VectorType(ir.FloatType(), 16), ir.IntType(64)
_ZERO = ir.Constant(_VECTOR, [0.0] * 16)
Array = np.ndarray


def _tile(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    factors, line, term, lanes, width, terms, made, to = arguments

    def at(base: Any, steps: Any, step: Any, kind: Any) -> Any:
        return builder.inttoptr(builder.add(base, builder.mul(builder.mul(steps, step), _INT(4))), kind.as_pointer())

    before, loop, after = builder.block, builder.append_basic_block("terms"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    count, sums = builder.phi(_INT), [builder.phi(_VECTOR) for _ in range(16)]
    here = builder.add(lanes, builder.mul(builder.mul(count, width), _INT(4)))
    halves = [builder.load(at(here, _INT(half), _INT(16), _VECTOR), align=4) for half in range(2)]
    first = builder.add(factors, builder.mul(builder.mul(count, term), _INT(4)))
    grown = []
    for number in range(16):
        factor = builder.load(at(first, _INT(number // 2), line, ir.FloatType()), align=4)
        lone = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), factor, ir.IntType(32)(0))
        spread = builder.shuffle_vector(lone, lone, ir.Constant(ir.VectorType(ir.IntType(32), 16), [0] * 16))
        product = builder.fmul(spread, halves[number % 2], flags=("contract",))
        grown.append(builder.fadd(product, sums[number], flags=("contract",)))
    following = builder.add(count, _INT(1))
    builder.cbranch(builder.icmp_signed("<", following, terms), loop, after)
    for phi, start, again in [
        (count, _INT(0), following),
        *((one, _ZERO, end) for one, end in zip(sums, grown, strict=True)),
    ]:
        phi.add_incoming(start, before)
        phi.add_incoming(again, loop)
    builder.position_at_end(after)
    for number in range(16):
        place = builder.add(made, _INT(64 * (number % 2)))
        builder.store(grown[number], at(place, _INT(number // 2), to, _VECTOR), align=4)
    return context.get_dummy_value()


def _typed(
    typing: Any, factors: Any, line: Any, term: Any, lanes: Any, width: Any, terms: Any, made: Any, to: Any
) -> Any:
    """made[e, i] = sum over t of factors[e, t] lanes[t, i], for eight e and 32 i; all arguments are integers.

    Args:
        factors: address; `line` and `term` are the steps of e and t, in floats as all steps.
        lanes: address; `width` is the step of t.
        terms: how many t, at least one.
        made: address; `to` is the step of e.
    """
    return types.void(*(types.int64,) * 8), _tile


tile: Any = intrinsic(_typed)


@compiled
def attend(
    heads_NAW: Array,
    rows_R4: Array,
    tokens_P: Array,
    key_heads: int,
    scale: float,
    made_NHW: Array,
    normalizers_NH: Array,
) -> None:
    """Softmax(q k^T scale) v of each token over those up to it in its row.

    Args:
        heads_NAW: queries, keys, values of all tokens; W is a multiple of 32.
        rows_R4: of each row its first place in `tokens_P`, its length, how many of its first tokens another row
            computes, and the first of the others; these follow each other.
        tokens_P: the tokens of the rows.
        key_heads: how many of the A heads are keys, and how many values.
        scale: factor of the scores.
        made_NHW: to be filled.
        normalizers_NH: to be filled with the logarithms of the sums of the exponentials.
    """
    heads, width = made_NHW.shape[1], made_NHW.shape[2]
    group = heads // key_heads
    block = max(LANES // group, 1)
    lanes = (block * group + 31) // 32 * 32 + 16  # no power of two: lines would compete for the same places of a cache
    longest = (np.max(rows_R4[:, 1]) + 7) // 8 * 8
    keys, values = np.zeros((longest, width), float32), np.zeros((longest, width), float32)
    lines, turned = np.zeros((lanes, width), float32), np.zeros((width, lanes), float32)
    weights, best, sums = np.zeros((longest, lanes), float32), np.zeros(lanes, float32), np.zeros(lanes, float32)
    bits = np.zeros(lanes, int32)
    for row in range(len(rows_R4)):
        start, length, known, token = rows_R4[row]
        for head in range(key_heads):
            take(heads_NAW, tokens_P, start, length, heads + head, keys)
            take(heads_NAW, tokens_P, start, length, heads + key_heads + head, values)
            for first in range(known, length, block):
                last = min(first + block, length)
                own, end = token + first - known, (last - first) * group
                to_lines(heads_NAW, own, head * group, group, end, scale, lines)
                turn(lines, end, turned)
                scores(keys, turned, first, last, group, end, weights)
                best[:] = -np.inf
                sums[:] = 0
                for key in range(last):
                    larger(best, weights[key], max(key - first, 0) * group, end)
                for key in range(last):
                    low = max(key - first, 0) * group
                    weights[key, :low] = 0
                    exponentials(weights[key], best, low, end, bits, bits.view(float32), sums)
                mixed(values, weights, first, last, group, end, lines)
                for lane in range(end):
                    at, which = own + lane // group, head * group + lane % group
                    normalizers_NH[at, which] = best[lane] + np.log(sums[lane])
                    scaled(lines[lane], float32(1) / sums[lane], made_NHW[at, which])


@compiled
def attend_backward(
    heads_NAW: Array,
    rows_R4: Array,
    tokens_P: Array,
    key_heads: int,
    scale: float,
    made_NHW: Array,
    normalizers_NH: Array,
    gradient_NHW: Array,
    made_NAW: Array,
) -> None:
    """Adds the gradients of keys and values to `made_NAW`, and fills in those of queries; the rest as in `attend`."""
    heads, width = made_NHW.shape[1], made_NHW.shape[2]
    group = heads // key_heads
    block = max(LANES // group, 1)
    lanes = (block * group + 31) // 32 * 32 + 16  # no power of two: lines would compete for the same places of a cache
    longest = (np.max(rows_R4[:, 1]) + 7) // 8 * 8
    keys, values = np.zeros((longest, width), float32), np.zeros((longest, width), float32)
    queries, turned = np.zeros((lanes, width), float32), np.zeros((width, lanes), float32)
    gradient, turned_gradient = np.zeros((lanes, width), float32), np.zeros((width, lanes), float32)
    found, eight = np.zeros((lanes, width), float32), np.zeros((8, width), float32)
    weights, slopes = np.zeros((longest, lanes), float32), np.zeros((longest, lanes), float32)
    normalizers, along, sums = np.zeros(lanes, float32), np.zeros(lanes, float32), np.zeros(lanes, float32)
    bits = np.zeros(lanes, int32)
    for row in range(len(rows_R4)):
        start, length, known, token = rows_R4[row]
        for head in range(key_heads):
            take(heads_NAW, tokens_P, start, length, heads + head, keys)
            take(heads_NAW, tokens_P, start, length, heads + key_heads + head, values)
            for first in range(known, length, block):
                last = min(first + block, length)
                own, end = token + first - known, (last - first) * group
                to_lines(heads_NAW, own, head * group, group, end, scale, queries)
                to_lines(gradient_NHW, own, head * group, group, end, float32(1), gradient)
                turn(queries, end, turned)
                turn(gradient, end, turned_gradient)
                for lane in range(end):
                    at, which = own + lane // group, head * group + lane % group
                    normalizers[lane] = normalizers_NH[at, which]
                    along[lane] = product(made_NHW[at, which], gradient[lane])
                scores(keys, turned, first, last, group, end, weights)
                scores(values, turned_gradient, first, last, group, end, slopes)
                for key in range(last):
                    low = max(key - first, 0) * group
                    exponentials(weights[key], normalizers, low, end, bits, bits.view(float32), sums)
                    slope(weights[key], along, low, end, slopes[key])
                    weights[key, :low] = 0
                    slopes[key, :low] = 0
                mixed(keys, slopes, first, last, group, end, found)
                for lane in range(end):
                    scaled(found[lane], scale, made_NAW[own + lane // group, head * group + lane % group])
                for place in range(0, last, 8):
                    tokens = tokens_P[start + place : start + min(place + 8, last)]
                    low = max(place - first, 0) * group
                    collected(slopes, place, queries, low, end, eight)
                    give(eight, tokens, heads + head, made_NAW)
                    collected(weights, place, gradient, low, end, eight)
                    give(eight, tokens, heads + key_heads + head, made_NAW)


@compiled
def scores(keys_LW: Array, lanes_WI: Array, first: int, last: int, group: int, end: int, made_LI: Array) -> None:
    """Keys times lanes, of all keys up to `last` but those that come after all tokens of 32 lanes."""
    width, step = lanes_WI.shape
    for lane in range(0, end, 32):
        seen = min(last, first + (lane + 31) // group + 1)
        for key in range(0, seen, 8):
            factors, lanes = keys_LW.ctypes.data + 4 * key * width, lanes_WI.ctypes.data + 4 * lane
            tile(factors, width, 1, lanes, step, width, made_LI.ctypes.data + 4 * (key * step + lane), step)


@compiled
def mixed(values_LW: Array, weights_LI: Array, first: int, last: int, group: int, end: int, made_IW: Array) -> None:
    """made[i] = the sum of the values by a lane's weights."""
    width, step = values_LW.shape[1], weights_LI.shape[1]
    for lane in range(0, end, 8):
        seen = min(last, first + (lane + 7) // group + 1)
        for w in range(0, width, 32):
            factors, place = weights_LI.ctypes.data + 4 * lane, made_IW.ctypes.data + 4 * (lane * width + w)
            tile(factors, 1, step, values_LW.ctypes.data + 4 * w, width, seen, place, width)


@compiled
def collected(weights_LI: Array, key: int, lines_IW: Array, low: int, end: int, made_8W: Array) -> None:
    """made = for each of eight keys the lines of lanes `low` to `end`, by their weights."""
    step, width = weights_LI.shape[1], lines_IW.shape[1]
    for w in range(0, width, 32):
        factors, lines = weights_LI.ctypes.data + 4 * (key * step + low), lines_IW.ctypes.data + 4 * (low * width + w)
        tile(factors, step, 1, lines, width, end - low, made_8W.ctypes.data + 4 * w, width)


@compiled
def take(heads_NAW: Array, tokens_P: Array, start: int, length: int, head: int, made_LW: Array) -> None:
    for one in range(length):
        made_LW[one] = heads_NAW[tokens_P[start + one], head]


@compiled
def give(lines_8W: Array, tokens: Array, head: int, made_NAW: Array) -> None:
    for one in range(len(tokens)):
        made, line = made_NAW[tokens[one], head], lines_8W[one]
        for w in range(len(line)):
            made[w] += line[w]


@compiled
def to_lines(heads_NAW: Array, token: int, head: int, group: int, end: int, scale: float, made_IW: Array) -> None:
    """A lane's line is of token + lane // group."""
    for lane in range(end):
        scaled(heads_NAW[token + lane // group, head + lane % group], scale, made_IW[lane])


@compiled
def scaled(line_W: Array, scale: float, made_W: Array) -> None:
    for w in range(len(line_W)):
        made_W[w] = line_W[w] * scale


@compiled
def turn(lines_IW: Array, end: int, made_WI: Array) -> None:
    for w in range(made_WI.shape[0]):
        made = made_WI[w]
        for lane in range(end):
            made[lane] = lines_IW[lane, w]


@compiled
def product(one_W: Array, other_W: Array) -> Any:
    total = float32(0)
    for w in range(len(one_W)):
        total += one_W[w] * other_W[w]
    return total


@compiled
def slope(weights_I: Array, along_I: Array, low: int, end: int, slopes_I: Array) -> None:
    weights, along, slopes = weights_I[low:end], along_I[low:end], slopes_I[low:end]
    for i in range(end - low):
        slopes[i] = weights[i] * (slopes[i] - along[i])


@compiled
def larger(best_I: Array, line_I: Array, low: int, end: int) -> None:
    best, line = best_I[low:end], line_I[low:end]
    for i in range(end - low):
        best[i] = line[i] if line[i] > best[i] else best[i]


@compiled
def exponentials(
    line_I: Array, offsets_I: Array, low: int, end: int, bits_I: Array, powers_I: Array, sums_I: Array
) -> None:
    """exp(line - offset) in place, for what is not above its offset, 1.6e-38 at the least; and added to the sums.

    Cephes' expf: a polynomial of the rest to a power of two, which is set in the bits of a float (`powers_I`).
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
