"""What a run left on disk: open any dump, touch headers only, map tensors when they are read."""

from tensordiff.dump.detect import open_dump
from tensordiff.dump.model import Dump, Entry, Problem, Spec

__all__ = ["Dump", "Entry", "Problem", "Spec", "open_dump"]
