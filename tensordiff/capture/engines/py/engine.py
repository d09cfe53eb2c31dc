"""``py:FILE.py:FUNCTION``: the user's own model.

The function takes no arguments and returns ``(module, args, kwargs)``, or yields such steps; its ``yield`` returns the
module's output for the step. A fourth element is the loss for ``--gradients``, a function of the module's output. The
function is called once for every pass, so it should build what it needs; a reusable child loads the file once. The
file's folder is on the import path while it runs, as if Python had been started with it.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import GeneratorType, ModuleType
from typing import Any

from torch import nn

from tensordiff.capture.engines.torch.capture import perform
from tensordiff.capture.engines.torch.devices.flags import make_deterministic
from tensordiff.capture.engines.torch.program import Step, Steps, seed
from tensordiff.capture.engines.torch.tensors import find_arguments
from tensordiff.capture.engines.torch.unchanged import StateCheck
from tensordiff.capture.events import Done, Phase, Tell
from tensordiff.capture.job import Job, Source
from tensordiff.capture.process.reusable_engine import RunJob
from tensordiff.errors import CaptureError, first_line, printable


def run(job: Job, tell: Tell) -> Done:
    """Run a ``py:`` job."""
    return perform(load(job, tell), job, tell)


def load_reusable(job: Job, tell: Tell) -> RunJob:
    """Load a function for several jobs; it is called again for each of them, as for each pass."""
    program, check = load(job, tell), StateCheck(with_inputs=True)

    return lambda job, tell: perform(check.watch(program), job, tell)


def load(job: Job, tell: Tell) -> FunctionProgram:
    """Load the function that a job names."""
    tell(Phase("loading", job.source.target))
    if job.settings.deterministic:
        make_deterministic()
    seed(job.settings.seed)  # the file may make its model while it is imported
    return FunctionProgram(job.source)


class FunctionProgram:
    """The steps that a user's function returns or yields."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.function = load_function(source)

    def steps(self) -> Steps:
        """Call the function again."""
        made = self.function()
        if isinstance(made, GeneratorType):
            yield from self._yielded(made)
            return
        yield _copied(self._step(made))

    def facts(self) -> Mapping[str, Any]:
        """A function has no prompt to report."""
        return {}

    def _yielded(self, made: GeneratorType[Any, Any, Any]) -> Steps:
        try:
            found = next(made)
            while True:
                found = made.send((yield self._step(found)))
        except StopIteration:
            return

    def _step(self, found: Any) -> Step:
        """The return value of a function as a step; args and kwargs may be left out."""
        if isinstance(found, nn.Module):
            found = (found,)
        if not (isinstance(found, tuple) and found and isinstance(found[0], nn.Module) and len(found) <= 4):
            raise CaptureError(
                f"{printable(self.source)}: gave {type(found).__name__}, and (module, args, kwargs) is wanted, "
                "module being a torch.nn.Module"
            )
        loss = found[3] if len(found) == 4 else None
        if loss is not None and not callable(loss):
            raise CaptureError(
                f"{printable(self.source)}: the loss is a {type(loss).__name__}, and a function is wanted"
            )
        module, args, kwargs = (*found, (), {})[:3] if len(found) != 2 else (*found, {})
        if isinstance(args, Mapping) and len(found) == 2:
            args, kwargs = (), args
        if not isinstance(kwargs, Mapping):
            raise CaptureError(f"{printable(self.source)}: kwargs are {type(kwargs).__name__}, and a dict is wanted")
        return Step(module, tuple(args) if isinstance(args, tuple | list) else (args,), dict(kwargs), loss)


def _copied(step: Step) -> Step:
    """Copy the arguments of a step, so that a cache among them is empty in every pass.

    Computed tensors are copied without their autograd history, which torch refuses to copy.
    """
    found = find_arguments(step.args, step.kwargs, whole_caches=True).tensors.values()
    memo = {id(tensor): tensor.detach().clone() for tensor in found if not tensor.is_leaf}
    args, kwargs = copy.deepcopy((step.args, step.kwargs), memo)
    return step._replace(args=args, kwargs=kwargs)


def load_function(source: Source) -> Callable[[], Any]:
    """The function that a source names."""
    module = _load_file(Path(source.target).expanduser())
    function = getattr(module, source.function or "", None)
    if not callable(function):
        names = [name for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"]
        there = ", ".join(names[:8]) or "none"
        raise CaptureError(f"{printable(source.target)}: has no function {source.function}; there are: {there}")
    return function  # type: ignore[no-any-return]


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CaptureError(f"{printable(path)}: is no file; write py:FILE.py:FUNCTION")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CaptureError(f"{printable(path)}: is not Python; write py:FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        reason = first_line(error)
        raise CaptureError(
            f"{printable(path)}: could not be imported ({type(error).__name__}: {reason:.300})"
        ) from error
    return module
