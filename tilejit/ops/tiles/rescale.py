"""Products of rows with factors that are mostly 1, as an online softmax has them: threads skip them where they are."""

from __future__ import annotations

from ...dtypes import bool_, float32
from ...ir.builder import element_type
from .elementwise import elementwise


def _emit_product(e, dtype, x, y, z):
    return e.ins(f"fmul contract {dtype.llvm} {x.text}, {y.text}", dtype)


rescale = elementwise("rescale", "``x * y`` of floats, where `y` is a power of the exponent `z`, which is mostly 0.",
                      lambda x, y, z: x * y, _emit_product, ("float",), 3)


@rescale.emit
def _(e, call, x, y, z):
    dtype = element_type(call.result)

    def products():
        return [_emit_product(e, dtype, *values) for values in zip(x, y, z)]
    zero = e.const(0.0, float32).text
    exponents = dict.fromkeys(v.text for v in z)  # known earlier than the powers
    test = e.all_of([e.ins(f"fcmp oeq float {exponent}, {zero}", bool_) for exponent in exponents])
    return e.control.emit_either(test, lambda: x, products)


__all__ = ["rescale"]
