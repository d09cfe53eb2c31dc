"""Turns errors of onnxruntime into one sentence: which node or operator failed, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from tensordiff.capture.engines.onnx.model import Model
from tensordiff.errors import CaptureError, printable

_NAMES = (
    "EPFail", "EngineError", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "ModelRequiresCompilation",
    "NoSuchFile", "NotFound", "NotImplemented", "RuntimeException",
)  # fmt: skip
FAILURES: tuple[type[Exception], ...] = tuple(getattr(state, name) for name in _NAMES if hasattr(state, name))
"""All exceptions that onnxruntime raises."""

_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_STOPPED = re.compile(r"while running (\S+) node\. Name:'([^']*)' Status Message: (.*)", re.DOTALL)
_NOTICED = re.compile(r"^/\S+:\d+ .*?(?:was false\.|\) (?=[A-Z]))\s*")  # the place in its source
_NO_KERNEL = (
    re.compile(r"Fatal error: (?P<domain>[^:\s]*):(?P<op>\w+)\(-?\d+\) is not a registered function/op"),
    re.compile(r"\(\"[^\"]*\", (?P<op>\w+), \"(?P<domain>[^\"]*)\", -?\d+\).*No opset import for domain"),
    re.compile(r"No Op registered for (?P<op>\w+) with domain_version"),
    re.compile(r"Could not find an implementation for (?:(?P<domain>[\w.]+)[.:])?(?P<op>\w+)\(\d+\)"),
)


class NodeFailure(Exception):
    """A node could not be computed."""

    def __init__(self, node: int | None, sentence: str) -> None:
        super().__init__(sentence)
        self.node = node
        """The index of the node, if it is known."""


def failure_from(said: str, model: Model) -> Exception:
    """The exception to raise for a message of onnxruntime."""
    path, text = printable(model.path.name), _CODE.sub("", said.strip())
    if found := _STOPPED.search(text):
        why, name = _first_line(_NOTICED.sub("", found[3].strip())), printable(found[2] or "without a name")
        sentence = f"{path}: the {found[1]} node {name} could not be computed: {why:.300}"
        return NodeFailure(_number(found[2], model), sentence)
    for pattern in _NO_KERNEL:
        if found := pattern.search(text):
            return CaptureError(_no_kernel(path, found.groupdict()))
    return CaptureError(f"{path}: onnxruntime {onnxruntime.__version__} cannot run it: {_first_line(text):.400}")


def _first_line(text: str) -> str:
    return printable(text.partition("\n")[0])


def _number(name: str, model: Model) -> int | None:
    found = [k for k, node in enumerate(model.nodes) if node.name == name]
    return found[0] if len(found) == 1 else None


def _no_kernel(path: str, found: Mapping[str, str | None]) -> str:
    domain, op = found.get("domain"), found["op"]
    name = printable(f"{domain}.{op}" if domain else op)
    return (
        f"{path}: wants the operator {name}, for which onnxruntime {onnxruntime.__version__} has no kernel here; "
        "operators of a library of their own cannot be run, nor those that a newer onnxruntime has"
    )
