"""Tensors that were saved as Python lists of numbers, as ``tensor.tolist()`` returns them.

A nested list of many floats is a tensor under any name. So is a flat one, unless its name says that it is a setting or
a history: those are reported, and not compared. Integers are ids, shapes and counters.

A list that no tensor could have produced, or that refers to one part many times, is reported and left out.
"""

from __future__ import annotations

import re

import numpy as np

from tensordiff.dump.dtypes import DTYPES
from tensordiff.dump.readers.torch.numpy_values import PickledArray, PickledDType
from tensordiff.dump.readers.torch.tensors import UnreadableTensor

FEWEST_NUMBERS = 16
_DEEPEST = 8
_UNEVEN_LIST = UnreadableTensor("is a list of numbers that has no shape; save it as a plain tensor")


# Words of configurations and training logs; only whole words count, since a layer may be called time_proj.
_SETTINGS = frozenset((
    "config", "configs", "configuration", "cfg", "args", "arguments", "namespace", "hparams", "hyperparameters",
    "hyper", "settings", "options", "factor", "factors", "betas", "history", "histories", "log", "logs", "loss",
    "losses", "metric", "metrics", "accuracy", "accuracies", "acc", "perplexity", "ppl", "bleu", "epoch", "epochs",
    "lr", "lrs", "learning", "scheduler", "schedulers", "schedule", "optim", "optimizer", "optimizers", "seconds",
    "times", "timings", "elapsed", "timestamps", "throughput", "meta", "metadata", "stats",
))  # fmt: skip
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_setting_name(name: str) -> bool:
    """Whether a word of a name, or of a class, says that it holds a setting or a history."""
    return any(word.lower() in _SETTINGS for word in _WORDS.findall(name))


def tensor_of_list(value: object, *, is_flat: bool) -> PickledArray | UnreadableTensor | None:
    """The tensor that a list is; None if it is no list of many floats. ``is_flat`` allows a flat list."""
    if not _starts_with_float(value, is_flat_enough=is_flat):
        return None
    level: list[object] = [value]
    shape: list[int] = []
    is_even = True
    while any(isinstance(one, list | tuple) for one in level):
        lists = [one for one in level if isinstance(one, list | tuple)]
        # If repeated parts counted, a few bytes could claim more numbers than fit into memory.
        lists = list({id(one): one for one in lists}.values())
        is_even = is_even and len(lists) == len(level) and len({len(one) for one in lists}) == 1
        if len(shape) == _DEEPEST:
            return _UNEVEN_LIST
        shape.append(len(lists[0]))
        level = [one for some in lists for one in some]
    if sum(type(one) is float for one in level) < FEWEST_NUMBERS:
        return None
    if not is_even or not all(type(one) is float for one in level):
        return _UNEVEN_LIST
    made = PickledArray()
    numbers = np.array(level, np.float64)
    with np.errstate(over="ignore"):
        narrow = numbers.astype(np.float32)
    # If all numbers fit float32, the tensor was float32: calling it wider would claim that it was computed so.
    is_narrow = np.array_equal(narrow.astype(np.float64), numbers, equal_nan=True)
    chosen, name = (narrow, "float32") if is_narrow else (numbers, "float64")
    made.fill(tuple(shape), PickledDType(DTYPES[name], ""), False, chosen.tobytes())
    return made


def _starts_with_float(value: object, *, is_flat_enough: bool) -> bool:
    for depth in range(_DEEPEST + 1):
        if not isinstance(value, list | tuple) or not value:
            return type(value) is float and depth > (0 if is_flat_enough else 1)
        value = value[0]
    return False
