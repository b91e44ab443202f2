"""Names of element types: numpy's ("f4", "float32"), struct codes ("f"), or a numpy dtype."""

from __future__ import annotations

import struct
from typing import Any

# struct code: (the names that numpy uses, the name in collectives, spelled as in safetensors)
_TYPES: dict[str, tuple[tuple[str, ...], str]] = {
    "B": (("u1", "uint8"), "U8"),
    "b": (("i1", "int8"), "I8"),
    "H": (("u2", "uint16"), "U16"),
    "h": (("i2", "int16"), "I16"),
    "I": (("u4", "uint32"), "U32"),
    "i": (("i4", "int32"), "I32"),
    "Q": (("u8", "uint64"), "U64"),
    "q": (("i8", "int64"), "I64"),
    "e": (("f2", "float16"), "F16"),
    "f": (("f4", "float32"), "F32"),
    "d": (("f8", "float64"), "F64"),
    "?": (("b1", "bool"), "BOOL"),
}
_CODES = {name: code for code, (names, _) in _TYPES.items() for name in names} | {code: code for code in _TYPES}
_CODES |= {"L": "Q", "l": "q"}  # 64 bits on the systems that Slipstream supports; numpy uses these codes


def format_of(dtype: Any) -> tuple[str, int]:
    """The struct code of an element type, and the bytes of one element."""
    code = _code_of(dtype)
    return code, struct.calcsize(code)


def data_type_of(dtype: Any) -> str:
    """The name of an element type in collectives. Other names, such as "BF16", are only converted to upper case."""
    try:
        return _TYPES[_code_of(dtype)][1]
    except ValueError:
        return str(dtype).upper()


def _code_of(dtype: Any) -> str:
    name = dtype if isinstance(dtype, str) else None
    if name is None:
        name = getattr(dtype, "name", None)  # numpy.dtype
    if name is None and isinstance(dtype, type):
        name = {"int": "q", "float": "d", "bool": "?"}.get(dtype.__name__, dtype.__name__)  # numpy.float32, float
    code = _CODES.get(name.lstrip("<=@|") if name else "")
    if code is None:
        raise ValueError(f"no element type {dtype!r}; the names are {', '.join(sorted(_CODES))}")
    return code
