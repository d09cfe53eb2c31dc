"""Packages that can be called: ``tensordiff.compare`` is both a folder of modules and a function of the library.

When a module of a package is imported, Python binds the package's name in its parent, so package and function must be
one object. The function is imported when it is first called, or when its signature or help is asked for.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A package that calls a function."""

    _target: tuple[str, str]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function."""
        return self._function()(*args, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function, for ``inspect`` and notebooks."""
        return inspect.signature(self._function())

    def _help(self) -> str:
        function = self._function()
        parameters = inspect.signature(function).parameters.values()
        listed = "\n".join(f"    {_spelled(parameter)}," for parameter in parameters)
        return f"{inspect.getdoc(function)}\n\n{function.__name__}(\n{listed}\n)"

    __doc__ = property(_help)
    """``help(tensordiff.compare)`` describes the function: its users need not know what the package holds."""

    def _function(self) -> Any:
        module, name = self._target
        return getattr(import_module(module), name)


def make_callable(package: str, module: str, function: str) -> None:
    """Make calling a package call a function of another module."""
    module_object = sys.modules[package]
    module_object.__class__ = CallableModule
    module_object.__dict__["_target"] = (module, function)


def _spelled(parameter: inspect.Parameter) -> str:
    """A parameter as the source writes it; annotations are text already."""
    stars = "**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else ""
    kind = "" if parameter.annotation is inspect.Parameter.empty else f": {parameter.annotation}"
    default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}{kind}{default}"
