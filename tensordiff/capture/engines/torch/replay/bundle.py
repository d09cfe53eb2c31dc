"""A repro bundle: one layer, its inputs, its expected outputs, and a script that needs only torch.

The layer is exported as a graph, because its class may be in a package that the reader does not have. The same goes for
classes of its inputs and outputs, so the graph takes and returns tensors by name. The script is run here once, in a
process of its own, so that a bundle that does not work is reported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor, nn

from tensordiff.capture.engines.torch.devices.offload import Weights, on_cpu
from tensordiff.capture.engines.torch.replay.arguments import Arguments, RebuiltCall
from tensordiff.capture.engines.torch.replay.repro_script import SCRIPT, repro_script
from tensordiff.capture.engines.torch.tensors import find
from tensordiff.capture.process.layers import ROOT
from tensordiff.errors import WriteError, first_line, printable
from tensordiff.util.atomic_write import follow_link, replacing, write_file

_FILES = ("weights.pt", "inputs.pt", "expected.pt", "layer.pt2", SCRIPT)


class PlainLayer(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Wraps a layer so that it takes tensors by name and returns tensors by port."""

    def __init__(
        self, layer: nn.Module, arguments: Callable[[Mapping[str, Tensor]], Arguments], *, whole_caches: bool
    ) -> None:
        super().__init__()
        self.layer, self.arguments, self.whole_caches = layer, arguments, whole_caches
        self.training = layer.training

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """Call the layer with arguments made of these tensors."""
        args, kwargs = self.arguments(given)
        return find(self.layer(*args, **kwargs), "output", whole_caches=self.whole_caches).tensors


class Repro(NamedTuple):
    """What a bundle is made of."""

    layer: str
    device: str
    """The device that the layer ran on."""
    module: nn.Module
    call: RebuiltCall
    """On the CPU."""

    def plain(self) -> PlainLayer:
        """The layer on the CPU, so that anyone can run it; the script moves it to another device if asked."""
        return PlainLayer(on_cpu(self.module), self.call.arguments, whole_caches=self.layer == ROOT)


def write_bundle(folder: Path, repro: Repro, expected: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> list[str]:
    """Write a bundle and try it; returns notes for the user. ``seen`` are the layer's outputs in this process."""
    with _new_folder(folder):
        inputs = repro.call.fresh()
        weights = {name: value.detach().cpu() for name, value in Weights(repro.module).values().items()}
        _save(folder / "weights.pt", partial(torch.save, weights))
        _save(folder / "inputs.pt", partial(torch.save, inputs))
        _save(folder / "expected.pt", partial(torch.save, dict(expected)))
        try:
            plain = repro.plain()
            with torch.no_grad():
                program = torch.export.export(plain, (dict(inputs),), strict=False)
            _save(folder / "layer.pt2", partial(torch.export.save, program))
        except WriteError:
            raise
        except Exception as error:  # export raises many kinds of errors
            reason = first_line(error)
            why = f"the layer could not be exported ({reason:.200})"
            return [f"{printable(folder)}: {why}, so there is no {SCRIPT}; the rest is there"]
        version = torch.__version__.partition("+")[0]
        module_class = type(repro.module).__name__
        write_file(
            folder / SCRIPT,
            repro_script(layer=repro.layer, module_class=module_class, torch_version=version, device=repro.device),
        )
    if repro.device == "cpu":
        return [_try_script(folder, seen, expected)]
    with torch.no_grad():
        on_the_cpu = plain(repro.call.fresh())
    return [_try_script(folder, on_the_cpu, expected), _device_note(folder, repro.device, on_the_cpu, seen)]


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """A folder for new files. If the block fails, the files are removed, so that no partial bundle is left."""
    try:
        is_new = not follow_link(folder).exists()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise WriteError(f"{printable(folder)}: is not empty; choose a new folder for the bundle")
    except OSError as error:
        raise WriteError(f"{printable(folder)}: cannot be written ({error.strerror})") from error
    try:
        yield
    except BaseException:
        for name in _FILES:
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # something else was put there
                folder.rmdir()
        raise


def _save(path: Path, save: Callable[[IO[bytes]], None]) -> None:
    """Write a file with a function of torch, which turns an ``OSError`` into an error of its own."""
    try:
        with replacing(path) as file:
            save(file)
    except (OSError, RuntimeError) as error:
        first = error if isinstance(error, OSError) else error.__context__
        if not isinstance(first, OSError):
            raise
        raise WriteError(f"{printable(path)}: cannot be written ({(first.strerror or str(first)).lower()})") from error


def _try_script(folder: Path, seen: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """Run the script as its reader will, and check that it reports the same errors as here."""
    command = [sys.executable, "-I", str(folder / SCRIPT), "--json"]
    ran = subprocess.run(  # noqa: S603 - our own script, in the environment that Python knows of (see Result.open)
        command, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    if ran.returncode:
        last = ran.stderr.strip().rpartition("\n")[2]
        return f"{printable(folder / SCRIPT)}: was tried and failed ({printable(last):.200})"
    said = json.loads(ran.stdout)
    here = {port: _rel_l2(seen[port], wanted) for port, wanted in expected.items() if port in seen}
    worst = max((abs(said[port][0] - here[port]) for port in here if port in said), default=0.0)
    agrees = "it says the same" if worst <= 1e-6 else f"beware: it is off by {worst:.1e} from what was seen here"
    return f"{printable(folder / SCRIPT)}: runs with torch alone; {agrees}"


def _device_note(folder: Path, device: str, on_the_cpu: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> str:
    """How far the CPU's result is from that of the layer's device: a bug in that device's kernels shows only there."""
    worst = max((_rel_l2(seen[port], value) for port, value in on_the_cpu.items() if port in seen), default=0.0)
    how = f"python {SCRIPT} --device {device.partition(':')[0]}"
    return f"{printable(folder / SCRIPT)}: what it ran on, {device}, is off by {worst:.1e} from the CPU; there: {how}"


def _rel_l2(got: Tensor, wanted: Tensor) -> float:
    a, b = (tensor.detach().cpu().double().reshape(-1) for tensor in (got, wanted))
    size = float(b.norm())
    return float((a - b).norm()) / size if size else float((a - b).norm())
