"""Runs work that may block in threads, and reports failures in one way.

A failure becomes a ``ThreadFailed`` message, which bubbles from the widget that started the work to its screen and to
the app, which shows it as a notification. A file that became shorter while it was read is reported in the same way.
Work that was cancelled or replaced meanwhile fails silently: nobody waits for it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message
from textual.widget import Widget
from textual.worker import active_worker, get_current_worker

from tensordiff.util.mappings import count_losses, raise_unclaimed


@dataclass
class ThreadFailed(Message):
    """Work in a thread raised an exception."""

    group: str
    error: BaseException


def in_thread(node: Widget, group: str, work: Callable[[], object]) -> None:
    """Run a function in a thread. Another one of the same group and widget replaces it."""

    held = [work]  # not by the worker when it has run: it may be garbage that is never collected

    def guarded() -> None:
        worker, before = get_current_worker(), count_losses()
        try:
            held.pop()()
            raise_unclaimed(before)
        except Exception as error:  # any exception becomes a notification
            if not worker.is_cancelled:
                node.post_message(ThreadFailed(group, error))
        finally:
            active_worker.set(None)  # type: ignore[arg-type]  # or an idle thread keeps the node alive

    # Given a name and description, or Textual would format everything that the function holds.
    node.run_worker(
        guarded, name=group, group=group, description=group, thread=True, exclusive=True, exit_on_error=False
    )
