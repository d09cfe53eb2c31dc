"""Where a bug is planted, and the few ways in which one gets into a module that is not ours.

A module's own ``forward`` is replaced on the instance, so that hooks still see what went in and what came out. What
happens *between* modules is changed by altering what a module hands on after the study's hooks have seen it: then no
module is wrong by itself, and the module around them is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from studies.models import Tiny

Rng = np.random.Generator


class Spot(NamedTuple):
    """A block of a model, and chance."""

    tiny: Tiny
    block: str
    rng: Rng

    def module(self, path: str) -> Any:
        """A module by its path in the model."""
        return self.tiny.model.get_submodule(path)

    def inside(self, name: str) -> str:
        """The path of a part of the block; the block itself for an empty name."""
        return f"{self.block}.{name}" if name else self.block

    @property
    def attention(self) -> str:
        """The path of the block's attention."""
        return self.inside(self.tiny.arch.attention)

    def one_of(self, paths: list[str]) -> str | None:
        """Any of some modules."""
        return str(self.rng.choice(sorted(paths))) if paths else None


class Planting(NamedTuple):
    """A bug about to be planted."""

    site: str
    """The path of the module that does wrong, with right inputs and with right parts."""
    plant: Callable[[], None]


def replace_forward(module: Any, make: Callable[[Any], Any]) -> None:
    """Give one instance another forward, made from its own."""
    module.forward = make(module.forward)


def change_output(module: Any, change: Callable[[Any], Any]) -> Callable[[], None]:
    """Change what a module computes."""

    def made(forward: Any) -> Any:
        return lambda *args, **kwargs: first_changed(forward(*args, **kwargs), change)

    return lambda: replace_forward(module, made)


def change_handed_on(module: Any, change: Callable[[Any], Any]) -> Callable[[], None]:
    """Change what a module's output becomes after it was seen: a fault of whatever is around it."""
    return lambda: module.register_forward_hook(lambda _, __, output: first_changed(output, change))


def first_changed(output: Any, change: Callable[[Any], Any]) -> Any:
    """An output with its first, or only, tensor changed."""
    return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)


def change_globals(module: Any, **names: Callable[[Any], Any]) -> Callable[[], None]:
    """While one module runs, let functions of its file be others, each made from the right one."""
    scope = type(module).forward.__globals__

    def made(forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with _swapped(scope, {name: make(scope[name]) for name, make in names.items()}):
                return forward(*args, **kwargs)

        return run

    return lambda: replace_forward(module, made)


@contextmanager
def _swapped(scope: dict[str, Any], names: dict[str, Any]) -> Iterator[None]:
    before = {name: scope[name] for name in names}
    scope.update(names)
    try:
        yield
    finally:
        scope.update(before)


def has_global(module: Any, name: str) -> bool:
    """Whether a function of this name stands in a module's file."""
    return name in type(module).forward.__globals__
