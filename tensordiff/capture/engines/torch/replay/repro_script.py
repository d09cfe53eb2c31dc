"""The text of ``repro.py``, the script of a bundle.

Names in it are from outside: a model may call a layer or a class what it likes, code or the end of a line included.
They enter in one place, as Python literals in plain ASCII, and nothing else of the text depends on them. What the
script prints of them is made printable when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping

SCRIPT = "repro.py"
_NAMES = "# (names)\n"
_TEXT = f'''"""One layer, called as it was recorded; prints how far it is from what it should give.

Needs torch, of the version below or near it, and nothing else. Run it as: python {SCRIPT}
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
    got, wanted = got.double().reshape(-1), wanted.double().reshape(-1)
    size = wanted.norm().item()
    off = (got - wanted).norm().item()
    largest = (got - wanted).abs().max().item() if got.numel() else 0.0
    return (off / size if size else off), largest


def shown(name):
    """A name on one line, without what would change a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def main():
    layer = torch.export.load(HERE / "layer.pt2").module()
    given = torch.load(HERE / "inputs.pt", weights_only=True)
    expected = torch.load(HERE / "expected.pt", weights_only=True)
    with torch.no_grad():
        got = layer(given)
    found = {port: error(got[port], wanted) for port, wanted in expected.items() if port in got}
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    print(f"{shown(LAYER)}, a {shown(CLASS)} of torch {TORCH}")
    for port, (rel_l2, max_abs) in found.items():
        print(f"{shown(port)}: rel_l2 {rel_l2:.3e}, largest difference {max_abs:.3e}")


main()
'''


def repro_script(*, layer: str, module_class: str, torch_version: str) -> str:
    """The script for a layer."""
    return _TEXT.replace(_NAMES, _assignments({"LAYER": layer, "CLASS": module_class, "TORCH": torch_version}))


def _assignments(names: Mapping[str, str]) -> str:
    """The one place where text from outside becomes code."""
    return "".join(f"{name} = {text!a}\n" for name, text in names.items())
