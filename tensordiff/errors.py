"""The errors that tensordiff raises on purpose.

TensordiffError            base class: a sentence for the user
  DumpError                a dump, or one file of it, cannot be read
    NotADump               no known dump format at that path
    BadFile                a file is truncated, inconsistent, or holds something that must not be executed
  AlignError               a rules file or an expression is wrong, or nothing could be paired
  WriteError               a dump or report could not be written
  CaptureError             a source could not be run
    ReleasedError          a tensor of a running source is needed again but was already released
  StoreError               a store (s3://, https://) still failed after all retries
  ClusterError             a cluster cannot be reached, or its workers cannot measure the dumps

Each message is one sentence: what was being done, to which file and tensor, and what to try next. The command line
prints the sentence and exits with status 2 (with a traceback only under ``--debug``); the app shows it in a notice.
Code in between catches an error only to continue without one tensor or file, which is then reported as a row, a problem
or a finding; to skip something optional, such as a hint or the list of recent pairs; to clean up; or to re-raise it
with the place where it happened.
"""

from __future__ import annotations

from os import PathLike

from tensordiff.secrets import masked

__all__ = [
    "AlignError", "BadFile", "CaptureError", "ClusterError", "DumpError", "NotADump", "ReleasedError", "StoreError",
    "TensordiffError", "WriteError", "first_line", "on_one_line", "printable", "printable_lines",
]  # fmt: skip


def printable(text: object) -> str:
    """Return untrusted text on one line, with control characters escaped and secrets of URLs masked."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in masked(str(text)))


def printable_lines(text: object) -> str:
    """The same for text of several lines, such as a child's log: line breaks stay, and tabs become spaces."""
    lines = str(text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(printable(line.expandtabs()) for line in lines)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, printable."""
    return printable(str(error).strip().partition("\n")[0])


def on_one_line(error: BaseException) -> str:
    """The whole message of an error on one line, printable."""
    return printable(" ".join(str(error).split()))


class TensordiffError(Exception):
    """A failure that the user can do something about."""


class DumpError(TensordiffError):
    """A dump, or one file of it, cannot be read."""


class NotADump(DumpError):
    """No known dump format at that path."""


class BadFile(DumpError):
    """A file is truncated, inconsistent, or holds something that must not be executed."""

    def __init__(self, path: str | PathLike[str], problem: str) -> None:
        super().__init__(f"{printable(path)}: {printable(problem)}")
        self.path, self.problem = str(path), problem


class AlignError(TensordiffError):
    """A rules file or an expression is wrong, or nothing could be paired."""


class WriteError(TensordiffError):
    """A dump or a report could not be written."""


class CaptureError(TensordiffError):
    """A source could not be run, or did not run to its end."""


class ReleasedError(CaptureError):
    """A tensor of a source that is still running is needed again but was already released."""


class StoreError(TensordiffError):
    """A store could not be reached, or failed too often to continue; this is not the fault of one file or tensor."""


class ClusterError(TensordiffError):
    """A cluster could not be reached, or its workers cannot measure the dumps they are given."""
