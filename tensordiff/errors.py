"""Every way tensordiff fails on purpose.

TensordiffError            a sentence for a person
  DumpError                a dump, or one file of it, cannot be read
    NotADump               nothing we know lies at that path
    BadFile                a file is truncated, lies about itself or holds what we will not run
  AlignError               a rules file or an expression is wrong, or nothing could be paired
  WriteError               a dump or report could not be written
  CaptureError             a source could not be run
    ReleasedError          a tensor of a running source is needed again, and is gone
  StoreError               a store (s3://, https://) failed more often than it is tried again
  ClusterError             a cluster's workers cannot measure what they are given

One sentence each: what was being done, to which file and tensor, what to try. The command line prints
the sentence and exits with status 2, with a traceback only under ``--debug``; the app shows it in a
notice. Code in between catches an error to go on without one tensor or file, which then is a row, a
problem or a finding of its own; to do without something optional, such as a hint or the list of recent
pairs; to clean up; or to raise it again with the place where it happened.
"""

from __future__ import annotations

from os import PathLike

from tensordiff.secrets import masked

__all__ = [
    "AlignError", "BadFile", "CaptureError", "ClusterError", "DumpError", "NotADump", "ReleasedError", "StoreError",
    "TensordiffError", "WriteError", "first_line", "on_one_line", "printable", "printable_lines",
]  # fmt: skip


def printable(text: object) -> str:
    """Show text from outside on one line: control characters are escaped, and secrets of URLs are masked."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in masked(str(text)))


def printable_lines(text: object) -> str:
    """The same for text of several lines, such as a child's log: where a line ends stays, and so do tabs as spaces."""
    lines = str(text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(printable(line.expandtabs()) for line in lines)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, printable."""
    return printable(str(error).strip().partition("\n")[0])


def on_one_line(error: BaseException) -> str:
    """The whole message of an error on one line, printable."""
    return printable(" ".join(str(error).split()))


class TensordiffError(Exception):
    """A failure that a person can act on."""


class DumpError(TensordiffError):
    """A dump, or one file of it, cannot be read."""


class NotADump(DumpError):
    """Nothing we know lies at that path."""


class BadFile(DumpError):
    """A file is truncated, lies about itself, or holds what we will not run."""

    def __init__(self, path: str | PathLike[str], problem: str) -> None:
        super().__init__(f"{printable(path)}: {printable(problem)}")
        self.path, self.problem = str(path), problem


class AlignError(TensordiffError):
    """A rules file or an expression is wrong, or nothing could be paired."""


class WriteError(TensordiffError):
    """A dump or a report could not be written."""


class CaptureError(TensordiffError):
    """A source could not be run, or not to its end."""


class ReleasedError(CaptureError):
    """A tensor of a source that still runs is needed again, and was let go."""


class StoreError(TensordiffError):
    """A store could not be reached, or not often enough to go on; no error of one file or tensor."""


class ClusterError(TensordiffError):
    """A cluster could not be reached, or its workers cannot measure what they are given."""
