"""Reading and writing dumps: open any dump, read only headers, map tensors when their values are needed."""

from tensordiff.dump.detect import open_dump
from tensordiff.dump.model import Dump, Entry, Problem, Spec

__all__ = ["Dump", "Entry", "Problem", "Spec", "open_dump"]
