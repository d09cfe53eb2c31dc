"""Notifications: what the app says in passing, and how a failure reads."""

from __future__ import annotations

from typing import Any, Literal

from textual.app import App
from textual.widget import Widget

from tensordiff.errors import TensordiffError, printable_lines

Severity = Literal["information", "warning", "error"]
_SHOWN_S = 8


def tell(node: Widget | App[Any], sentence: str, severity: Severity = "information") -> None:
    """Show a notification. Text from outside is never markup; its line ends stay."""
    node.notify(printable_lines(sentence), severity=severity, markup=False, timeout=_SHOWN_S)


def sentence_of(error: BaseException) -> str:
    """What to tell of a failure: our own errors are sentences, all others are defects."""
    if isinstance(error, TensordiffError):
        return str(error)
    return f"a defect of tensordiff ({type(error).__name__}: {error})"
