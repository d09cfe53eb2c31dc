"""Inert records in place of objects of unknown classes in a pickle. Nothing is imported and nothing is called.

A pickle names a class, gives it arguments, then a state, list items or dict items. A ``Record`` keeps all of these as
data, so that tensors within a ``ModelOutput``, a cache or a tensor subclass are found although the class is not
installed. Something that a pickle would *run* (``os.system``) is a record, too, and says so.
"""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.dump.readers.torch.tensors import UnreadableTensor, shorten

_LONGEST = 200


class UnknownGlobal(NamedTuple):
    """A class or function that a pickle names and we do not know."""

    module: str
    name: str

    @classmethod
    def of(cls, module: str, name: str) -> UnknownGlobal:
        """A global by its name, shortened to what a sentence can show."""
        return cls(module[:_LONGEST], name[:_LONGEST])

    def __str__(self) -> str:
        return shorten(f"{self.module}.{self.name}")

    @property
    def short(self) -> str:
        """The class without its module."""
        return self.name.rpartition(".")[2]


class Record:
    """An object of an unknown class, or what an unknown function would have returned."""

    __slots__ = ("args", "items", "of", "pairs", "state")

    def __init__(self, of: UnknownGlobal, args: tuple[object, ...] = ()) -> None:
        self.of, self.args = of, args
        self.state: object = None
        self.items: list[object] | None = None
        self.pairs: dict[object, object] | None = None

    @property
    def attributes(self) -> dict[object, object]:
        """The object's attributes, if its state is one dict, or a dict and one of slots."""
        if type(self.state) is dict:
            return self.state
        if type(self.state) is tuple and len(self.state) == 2:
            dicts = [part for part in self.state if type(part) is dict]
            return {key: value for part in dicts for key, value in part.items()}
        return {}


class LongText(NamedTuple):
    """Text too long to be a name, which stays in the file: ``at`` and ``size`` are bytes of the file."""

    at: int
    size: int


class Blob(NamedTuple):
    """Bytes within a pickle that stay in the file; ``is_text`` if each is encoded as a character of UTF-8."""

    at: int
    size: int
    is_text: bool


_PROGRAMS = frozenset((
    "os", "posix", "nt", "subprocess", "sys", "shutil", "socket", "ctypes", "_ctypes", "pty", "runpy", "importlib",
    "imp", "code", "codeop", "pdb", "bdb", "commands", "webbrowser", "pickle", "_pickle", "cPickle", "marshal", "io",
    "_io", "asyncio", "multiprocessing", "threading", "signal", "platform", "timeit", "cProfile", "profile", "trace",
    "pip", "ensurepip", "pydoc", "linecache", "tempfile", "urllib", "http", "ftplib", "smtplib", "nturl2path",
    "cloudpickle", "dill", "joblib",
))  # fmt: skip
_DANGEROUS_BUILTINS = frozenset((
    "eval", "exec", "execfile", "open", "compile", "__import__", "input", "breakpoint", "apply", "globals", "vars",
    "setattr", "delattr", "file", "memoryview", "exit", "quit", "help", "type", "super", "print",
))  # fmt: skip
_DANGEROUS_NAMES = frozenset(("load", "load_url", "load_state_dict_from_url", "system", "popen", "fork", "unlink"))


def is_program(of: UnknownGlobal) -> bool:
    """Whether a name could run code and is never needed to save a tensor."""
    module, name = of
    if module in ("builtins", "__builtin__"):
        return name.partition(".")[0] in _DANGEROUS_BUILTINS or "." in name
    parts = (*module.split("."), *name.split("."))
    return (
        parts[0] in _PROGRAMS
        or any(p in ("os", "sys", "subprocess", "builtins") for p in parts)
        or (parts[-1] in _DANGEROUS_NAMES or any(p.startswith("__") and p.endswith("__") for p in parts))
    )


def refusal(of: UnknownGlobal) -> UnreadableTensor:
    """An unreadable tensor in place of what a pickle would run."""
    return UnreadableTensor(
        f"needs {of} to be loaded, which tensordiff will not run; nothing was run, and nothing that holds "
        "tensors needs it: do not load this file with torch.load"
    )
