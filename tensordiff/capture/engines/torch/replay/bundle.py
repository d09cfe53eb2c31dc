"""A repro bundle: one layer, its inputs, what it should give, and a script that runs with torch alone.

The layer is exported as a graph, because its class may live in a package that the reader does not have; so may those
of what it takes and gives, so the graph takes tensors by name and gives tensors by name. The script is run here once,
in a process of its own, so that a bundle that does not work is never handed out unsaid.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tensordiff.capture.engines.torch.replay.arguments import Arguments
from tensordiff.capture.engines.torch.tensors import find
from tensordiff.errors import WriteError, printable

SCRIPT = "repro.py"
_TEXT = '''"""{layer}: {kind}, called as it was recorded; prints how far it is from what it should give.

Needs torch {torch} or near it, and nothing else. Run it as: python repro.py
"""

import json
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).parent


def error(got, wanted):
    """Relative L2 error and largest absolute difference, in float64."""
    got, wanted = got.double().reshape(-1), wanted.double().reshape(-1)
    size = wanted.norm().item()
    off = (got - wanted).norm().item()
    largest = (got - wanted).abs().max().item() if got.numel() else 0.0
    return (off / size if size else off), largest


def main():
    layer = torch.export.load(HERE / "layer.pt2").module()
    given = torch.load(HERE / "inputs.pt", weights_only=True)
    expected = torch.load(HERE / "expected.pt", weights_only=True)
    with torch.no_grad():
        got = layer(given)
    found = {{port: error(got[port], wanted) for port, wanted in expected.items() if port in got}}
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    for port, (rel_l2, max_abs) in found.items():
        print(f"{layer} {{port}}: rel_l2 {{rel_l2:.3e}}, largest difference {{max_abs:.3e}}")


main()
'''


class Plain(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A layer as one that takes tensors by name and gives tensors by port."""

    def __init__(
        self, layer: nn.Module, arguments: Callable[[Mapping[str, Tensor]], Arguments], *, whole_caches: bool
    ) -> None:
        super().__init__()
        self.layer, self.arguments, self.whole_caches = layer, arguments, whole_caches
        self.training = layer.training

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the layer gives when it is called with arguments made of these."""
        args, kwargs = self.arguments(given)
        return find(self.layer(*args, **kwargs), "output", whole_caches=self.whole_caches).tensors


def write_bundle(
    folder: Path,
    name: str,
    plain: Plain,
    inputs: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    seen: Mapping[str, Tensor],
) -> list[str]:
    """Write a bundle and try it; what a person should know of it. ``seen`` is what the layer gave here."""
    _make(folder)
    torch.save(dict(plain.layer.state_dict()), folder / "weights.pt")
    torch.save(dict(inputs), folder / "inputs.pt")
    torch.save(dict(expected), folder / "expected.pt")
    try:
        with torch.no_grad():
            program = torch.export.export(plain, (dict(inputs),), strict=False)
        torch.export.save(program, folder / "layer.pt2")
    except Exception as error:  # export refuses in as many ways as there are models
        said = printable(str(error).strip().partition("\n")[0])
        return [f"{folder}: the layer could not be exported ({said:.200}), so there is no repro.py; the rest is there"]
    text = _TEXT.format(layer=name, kind=type(plain.layer).__name__, torch=torch.__version__.partition("+")[0])
    (folder / SCRIPT).write_text(text, "utf-8")
    return [_tried(folder, seen, expected)]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise WriteError(f"{printable(folder)}: is not empty; choose a new folder for the bundle")
    except OSError as error:
        raise WriteError(f"{printable(folder)}: cannot be written ({error.strerror})") from error


def _tried(folder: Path, seen: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """Run the script as its reader will, and see that it says what was seen here."""
    command = [sys.executable, "-I", str(folder / SCRIPT), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    if ran.returncode:
        last = ran.stderr.strip().rpartition("\n")[2]
        return f"{folder / SCRIPT}: was tried and failed ({printable(last):.200})"
    said = json.loads(ran.stdout)
    here = {port: _rel_l2(seen[port], wanted) for port, wanted in expected.items() if port in seen}
    worst = max((abs(said[port][0] - here[port]) for port in here if port in said), default=0.0)
    agrees = "it says the same" if worst <= 1e-6 else f"beware: it is off by {worst:.1e} from what was seen here"
    return f"{folder / SCRIPT}: runs with torch alone; {agrees}"


def _rel_l2(got: Tensor, wanted: Tensor) -> float:
    a, b = got.detach().cpu().double().reshape(-1), wanted.double().reshape(-1)
    size = float(b.norm())
    return float((a - b).norm()) / size if size else float((a - b).norm())
