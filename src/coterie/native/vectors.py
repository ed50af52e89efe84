"""Sixteen numbers side by side, as a value that Numba keeps in registers: LLVM's vectors, with arithmetic.

Numba leaves it to LLVM to find vectors in loops. Sums that live across an inner loop then stay in memory, which costs
products with sparse rows a factor of five. LLVM splits sixteen lanes into whatever vectors the processor has.

Every function also takes plain numbers in place of lanes (and an array with one axis in place of rows of sixteen), so
that what is written for sixteen problems at a time also serves one.
"""

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.extending import models, overload, register_model

from coterie.native.kernels import jit

LANES = 16
# bytes
_ALIGNED = 64
# products and sums may be fused; NaN and infinities stay what they are
_FLAGS = ("contract", "nsz")
# whose results are called with one argument less than they are written with
intrinsic: Any = extending.intrinsic
_INDEX = ir.VectorType(ir.IntType(32), LANES)


def aligned(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    """Zeros, placed where lanes are loaded fastest."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    return memory[start : start + size].view(dtype).reshape(shape)


class Lanes(types.Type):
    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, ir.VectorType(_llvm(kind.dtype), LANES))


def _llvm(dtype: Any) -> Any:
    return ir.DoubleType() if dtype == types.float64 else ir.FloatType()


def _in_row(array: Any) -> Any:
    """What a row of an array holds."""
    return array.dtype if array.ndim == 1 else Lanes(array.dtype)


def _place(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    """Where a row of a contiguous array begins."""
    data = context.make_array(kind)(context, builder, array).data
    if kind.ndim == 1:
        return builder.gep(data, [row])
    start = builder.gep(data, [builder.mul(row, row.type(LANES))])
    return builder.bitcast(start, ir.VectorType(_llvm(kind.dtype), LANES).as_pointer())


@intrinsic
def load(typing: Any, array: Any, row: Any) -> Any:
    """array[row]"""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_place(context, builder, array, *args), align=array.dtype.bitwidth // 8)

    return _in_row(array)(array, types.intp), build


@intrinsic
def store(typing: Any, array: Any, row: Any, value: Any) -> Any:
    """array[row] = value"""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _place(context, builder, array, *args[:2]), align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, _in_row(array)), build


@intrinsic
def everywhere(typing: Any, number: Any, like: Any) -> Any:
    """The number in every lane, as many as `like` has, and as precise."""
    wide = isinstance(like, Lanes)
    dtype = like.dtype if wide else like

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not wide:
            return args[0]
        vector = ir.VectorType(args[0].type, LANES)
        undefined = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(undefined, args[0], ir.IntType(32)(0))
        return builder.shuffle_vector(first, undefined, ir.Constant(_INDEX, [0] * LANES))

    return like(dtype, like), build


def _arithmetic(operation: Any, name: str) -> None:
    @intrinsic
    def apply(typing: Any, left: Any, right: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, name)(*args, flags=_FLAGS)

        return left(left, right), build

    @overload(operation)
    def chosen(left, right):
        if isinstance(left, Lanes) and left == right:
            return lambda left, right: apply(left, right)
        return None


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


@intrinsic
def negative(typing: Any, value: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fneg(args[0])

    return value(value), build


def _by_llvm(name: str) -> Any:
    @intrinsic
    def call(typing: Any, value: Any) -> Any:
        wide = isinstance(value, Lanes)
        dtype = value.dtype if wide else value
        full_name = f"llvm.{name}.{f'v{LANES}' if wide else ''}f{dtype.bitwidth}"

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(args[0].type, [args[0].type])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, full_name), args)

        return value(value), build

    return call


@intrinsic
def plus_bits(typing: Any, count: Any, value: Any) -> Any:
    """Lanes of doubles added up as the whole numbers of 64 bits that they are stored as, modulo 2^64."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = ir.VectorType(ir.IntType(64), LANES)
        return builder.bitcast(builder.add(*(builder.bitcast(lanes, whole) for lanes in args)), args[0].type)

    return count(count, value), build


nearest_whole = _by_llvm("rint")
root = _by_llvm("sqrt")


def _converted(dtype: Any) -> Any:
    @intrinsic
    def convert(typing: Any, value: Any) -> Any:
        wide = isinstance(value, Lanes)
        before = value.dtype if wide else value

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if before == dtype:
                return args[0]
            to = ir.VectorType(_llvm(dtype), LANES) if wide else _llvm(dtype)
            return (builder.fptrunc if dtype == types.float32 else builder.fpext)(args[0], to)

        return (Lanes(dtype) if wide else dtype)(value), build

    return convert


single = _converted(types.float32)
double = _converted(types.float64)


@intrinsic
def where_positive(typing: Any, test: Any, yes: Any, no: Any) -> Any:
    """`yes` where `test` > 0; `no` elsewhere, and where `test` is not a number."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(args[0].type, None if isinstance(test, Lanes) else 0.0)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), args[1], args[2])

    return yes(test, yes, no), build


@intrinsic
def two_to_the(typing: Any, whole: Any) -> Any:
    """2^k of lanes of whole numbers k that numbers of this precision can have for an exponent."""
    bits, mantissa, bias = (64, 52, 1023) if whole.dtype == types.float64 else (32, 23, 127)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(ir.IntType(bits), LANES)
        biased = builder.add(builder.fptosi(args[0], kind), ir.Constant(kind, [bias] * LANES))
        return builder.bitcast(builder.shl(biased, ir.Constant(kind, [mantissa] * LANES)), args[0].type)

    return whole(whole), build


def _over_lanes(join: Any) -> Any:
    @intrinsic
    def reduce(typing: Any, value: Any) -> Any:
        if not isinstance(value, Lanes):
            return value(value), lambda context, builder, signature, args: args[0]

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector, width = args[0], LANES
            undefined = ir.Constant(vector.type, ir.Undefined)
            # one half onto the other
            while width > 1:
                width //= 2
                order = ir.Constant(_INDEX, [(lane + width) % LANES for lane in range(LANES)])
                vector = join(builder, vector, builder.shuffle_vector(vector, undefined, order))
            return builder.extract_element(vector, ir.IntType(32)(0))

        return value.dtype(value), build

    return reduce


total = _over_lanes(lambda builder, a, b: builder.fadd(a, b, flags=_FLAGS))
# what is not a number counts as the largest: it must not look small
largest = _over_lanes(
    lambda builder, a, b: builder.select(
        builder.or_(builder.fcmp_ordered(">=", a, b), builder.fcmp_unordered("uno", a, a)), a, b
    )
)


@jit
def clear(rows):
    for j in range(rows.shape[0]):
        store(rows, j, everywhere(0, load(rows, j)))
