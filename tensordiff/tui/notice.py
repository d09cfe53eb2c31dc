"""Notifications, and the sentences for failures."""

from __future__ import annotations

import logging
from typing import Any, Literal

from textual.app import App
from textual.widget import Widget

from tensordiff.errors import TensordiffError, printable_lines

Severity = Literal["information", "warning", "error"]
_SHOWN_S = 8


def tell(node: Widget | App[Any], sentence: str, severity: Severity = "information") -> None:
    """Show a notification. Text from outside is never markup; its line breaks stay."""
    node.notify(printable_lines(sentence), severity=severity, markup=False, timeout=_SHOWN_S)


def sentence_of(error: BaseException) -> str:
    """The sentence for an error: our own errors are sentences, all others are defects."""
    if isinstance(error, TensordiffError):
        return str(error)
    return f"a defect of tensordiff ({type(error).__name__}: {error})"


class LoggedNotices(logging.Handler):
    """Shows what is logged below a name, in any thread, as long as a screen lives."""

    def __init__(self, node: Widget, name: str) -> None:
        super().__init__()
        self._node, self._logger = node, logging.getLogger(name)
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        tell(self._node, record.getMessage(), "warning")

    def close(self) -> None:
        """Stop showing records."""
        self._logger.removeHandler(self)
        super().close()
