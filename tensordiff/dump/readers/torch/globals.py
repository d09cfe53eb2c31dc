"""The functions and classes that a torch file's pickle may name.

None of them is called. For each name in ``GLOBALS``, a function from here builds a record of what torch or numpy would
have built; every other name stands for itself and makes inert records (``records``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensordiff.dump.dtypes import DTYPES
from tensordiff.dump.readers.torch.numpy_values import NUMPY, NUMPY_TYPES
from tensordiff.dump.readers.torch.records import Blob, LongText, Record, UnknownGlobal
from tensordiff.dump.readers.torch.tensors import (
    BadPickle,
    StorageType,
    Tensor,
    TorchDType,
    UnreadableTensor,
    view_storage,
)


@dataclass(frozen=True, slots=True)
class AllowedGlobal:
    """A function or class that a pickle may name; ``build`` is called in its place, if it may be called at all."""

    name: str
    build: Callable[..., object] | None = None


def find_global(module: str, name: str) -> object:
    """What a global that a pickle names stands for."""
    value = GLOBALS.get((module, name))
    return UnknownGlobal.of(module, name) if value is None else value


def _tensor_v2(
    storage: object, offset: object, size: object, stride: object,
    _grad: object, _hooks: object, flags: object = None,
) -> Tensor | UnreadableTensor:  # fmt: skip
    return view_storage(storage, offset, size, stride, flags)


def _tensor_v3(
    storage: object, offset: object, size: object, stride: object,
    _grad: object, _hooks: object, of: object, flags: object = None,
) -> Tensor | UnreadableTensor:  # fmt: skip
    return view_storage(storage, offset, size, stride, flags, of)


def _parameter(data: object, *_rest: object) -> Tensor | UnreadableTensor:
    if type(data) is not Tensor and type(data) is not UnreadableTensor:
        raise BadPickle("makes a parameter of something other than a tensor")
    return data


def _from_type(rebuild: object, kind: object, args: object, state: object) -> object:
    """A tensor with attributes of its own, or of a class of its own, whose values may be in its state."""
    if type(rebuild) is not AllowedGlobal or rebuild.name not in _REBUILDS or type(args) is not tuple:
        raise BadPickle("rebuilds a tensor in a way we do not know")
    if rebuild.name == "_rebuild_wrapper_subclass":
        record = Record(kind if type(kind) is UnknownGlobal else UnknownGlobal("torch", "Tensor"), args)
        record.state = state
        return record
    if kind not in _PLAIN_TENSORS and type(kind) is not UnknownGlobal:
        raise BadPickle("rebuilds a tensor as something that is no class")
    return _REBUILDS[rebuild.name](*args)


def _encode(text: object, encoding: object) -> bytes | Blob:
    """Bytes, as Python writes them in an old pickle."""
    if encoding != "latin1":
        raise BadPickle("writes bytes in a way we do not know")
    if type(text) is LongText:
        return Blob(text.at, text.size, is_text=True)
    if type(text) is not str:
        raise BadPickle("writes bytes in a way we do not know")
    return text.encode("latin1")


def _plain_object(kind: object, *_rest: object) -> object:
    """What ``copyreg`` makes of a class before its state is set."""
    if type(kind) is not UnknownGlobal:
        raise BadPickle("makes an object of something that is no class we know")
    return Record(kind)


def _mapping(*args: object) -> dict[object, object]:
    """An empty mapping, whose items follow in the pickle. Only Python 2 wrote them as an argument."""
    if args and type(args[0]) is list and args[0]:
        raise BadPickle("holds a mapping as Python 2 wrote it; load and save it again with a newer torch")
    return {}


def _same(values: object = ()) -> object:
    return values


def _bytes(data: object = b"", *_encoding: object) -> bytes | Blob:
    return data if isinstance(data, bytes | Blob) else b""


def _no_value(*_args: object) -> None:
    """Something that is not a tensor and holds none, such as a device."""


def _refuse(sentence: str) -> Callable[..., UnreadableTensor]:
    return lambda *_args: UnreadableTensor(sentence)


_REFUSED_SIZES = {
    "complex32": 4, "qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1, "float4_e2m1fn_x2": 1,
    "bits8": 1, "bits16": 2, "bits1x8": 1, "bits2x4": 1, "bits4x2": 1,
}  # fmt: skip
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexDouble": "complex128", "ComplexFloat": "complex64",
    "Untyped": "uint8",
    "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4",
}  # fmt: skip
_REBUILDS: dict[str, Callable[..., object]] = {
    "_rebuild_tensor": view_storage,  # torch itself gives it the first four
    "_rebuild_tensor_v2": _tensor_v2,
    "_rebuild_tensor_v3": _tensor_v3,
    "_rebuild_parameter": _parameter,
    "_rebuild_parameter_with_state": _parameter,
    "_rebuild_qtensor": _refuse("is quantized; save its .dequantize() instead"),
    "_rebuild_sparse_tensor": _refuse("is sparse; save its .to_dense() instead"),
    "_rebuild_sparse_csr_tensor": _refuse("is sparse; save its .to_dense() instead"),
    "_rebuild_nested_tensor": _refuse("is a nested tensor; save its .unbind() instead"),
    "_rebuild_meta_tensor_no_storage": _refuse("is on the meta device and has no values"),
    "_rebuild_wrapper_subclass": _refuse("is a subclass of torch.Tensor; save a plain tensor"),
}

_TORCH_DTYPES = {name: TorchDType(name, dtype.itemsize, dtype) for name, dtype in DTYPES.items()} | {
    name: TorchDType(name, size, None) for name, size in _REFUSED_SIZES.items()
}
_SCHEMES = (
    "tensor_affine", "tensor_symmetric",
    "channel_affine", "channel_symmetric", "channel_affine_float_qparams",
)  # fmt: skip
_PLAIN_TENSORS = (AllowedGlobal("torch.Tensor"), AllowedGlobal("torch.nn.parameter.Parameter"))
_BUILTINS: dict[str, Callable[..., object] | None] = {
    "set": _same, "frozenset": _same, "complex": _no_value, "bytearray": _bytes, "bytes": _bytes,
    "list": None, "dict": None, "tuple": None, "int": None, "float": None, "str": None, "bool": None,
}  # fmt: skip

GLOBALS: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): AllowedGlobal("OrderedDict", _mapping),
    ("collections", "defaultdict"): AllowedGlobal("defaultdict", _mapping),
    ("collections", "Counter"): AllowedGlobal("Counter", _no_value),
    ("_codecs", "encode"): AllowedGlobal("encode", _encode),
    ("torch", "Size"): AllowedGlobal("torch.Size", _same),
    ("torch", "device"): AllowedGlobal("torch.device", _no_value),
    ("torch", "Tensor"): _PLAIN_TENSORS[0],
    ("torch.nn.parameter", "Parameter"): _PLAIN_TENSORS[1],
    **{
        (module, "_reconstructor"): AllowedGlobal("_reconstructor", _plain_object) for module in ("copyreg", "copy_reg")
    },
    **{place: AllowedGlobal(place[1], build) for place, build in NUMPY.items()},
    **NUMPY_TYPES,
    ("torch.serialization", "_get_layout"): AllowedGlobal("_get_layout", _no_value),
    ("torch._tensor", "_rebuild_from_type_v2"): AllowedGlobal("_rebuild_from_type_v2", _from_type),
    **{("torch._utils", name): AllowedGlobal(name, build) for name, build in _REBUILDS.items()},
    **{("torch", name): of for name, of in _TORCH_DTYPES.items()},
    **{
        (module, f"{kind}Storage"): StorageType(_TORCH_DTYPES[name])
        for kind, name in _STORAGES.items()
        for module in ("torch", "torch.cuda", "torch.storage")
    },
    **{
        (module, name): AllowedGlobal(name, build)
        for name, build in _BUILTINS.items()
        for module in ("builtins", "__builtin__")
    },
    **{("torch", f"per_{scheme}"): AllowedGlobal(scheme) for scheme in _SCHEMES},
}
