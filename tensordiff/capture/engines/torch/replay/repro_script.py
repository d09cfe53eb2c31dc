"""The text of ``repro.py``, the script of a bundle.

Names in it come from outside: a model may give a layer or a class any name, including code or a line break. They are
inserted in one place, as Python literals in plain ASCII, and nothing else in the text depends on them. The script makes
them printable before it prints them.
"""

from __future__ import annotations

from collections.abc import Mapping

SCRIPT = "repro.py"
_NAMES = "# (names)\n"
_TEXT = f'''"""One layer, called as it was recorded; prints how far it is from what it should give.

Needs torch, of the version below or near it, and nothing else. Run it as: python {SCRIPT}
It runs on the CPU. Where the layer ran on another device, its error may show only there: python {SCRIPT} --device cuda
"""

import json
import pathlib
import sys

import torch

{_NAMES}
'''
_TEXT += '''HERE = pathlib.Path(__file__).parent


def error(got, wanted):
    """Relative L2 error and largest absolute difference, in float64."""
    got, wanted = got.cpu().double().reshape(-1), wanted.cpu().double().reshape(-1)
    size = wanted.norm().item()
    off = (got - wanted).norm().item()
    largest = (got - wanted).abs().max().item() if got.numel() else 0.0
    return (off / size if size else off), largest


def shown(name):
    """A name on one line, without what would change a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def main():
    device = sys.argv[sys.argv.index("--device") + 1] if "--device" in sys.argv else "cpu"
    program = torch.export.load(HERE / "layer.pt2")
    if device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    layer = program.module()
    given = torch.load(HERE / "inputs.pt", map_location="cpu", weights_only=True)
    given = {port: tensor.to(device) for port, tensor in given.items()}
    expected = torch.load(HERE / "expected.pt", map_location="cpu", weights_only=True)
    with torch.no_grad():
        got = layer(given)
    found = {port: error(got[port], wanted) for port, wanted in expected.items() if port in got}
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    print(f"{shown(LAYER)}, a {shown(CLASS)} of torch {TORCH}, on {device}; it was recorded on {DEVICE}")
    for port, (rel_l2, max_abs) in found.items():
        print(f"{shown(port)}: rel_l2 {rel_l2:.3e}, largest difference {max_abs:.3e}")


main()
'''


def repro_script(*, layer: str, module_class: str, torch_version: str, device: str = "cpu") -> str:
    """The script for a layer."""
    names = {"LAYER": layer, "CLASS": module_class, "TORCH": torch_version, "DEVICE": device}
    return _TEXT.replace(_NAMES, _assignments(names))


def _assignments(names: Mapping[str, str]) -> str:
    """Names as assignments in Python. This is the only place where text from outside becomes code."""
    return "".join(f"{name} = {text!a}\n" for name, text in names.items())
