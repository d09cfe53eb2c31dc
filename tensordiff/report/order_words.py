"""Whether both sides ran in the same order, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from tensordiff.errors import printable
from tensordiff.report.story import Order

_SHOWN = 20


def order_sentences(order: Order) -> Iterator[str]:
    """What is known of the order, and where the two part ways."""
    if order.name == "same":
        yield "Both sides ran the paired layers in the same order."
        return
    if order.name == "unknown":
        source = {"values": "recovered from the values", "names": "guessed from the names"}
        taken = source.get(order.taken_from, f"that of the {order.taken_from}")
        yield f"Not known: a dump carries no order. The order shown is {taken}."
        return
    yield f"The order differs at {len(order.differences)} positions; shown is that of the {order.taken_from}."
    for part in order.differences[:_SHOWN]:
        yield f"  position {part.position}: {printable(part.reference)} against {printable(part.candidate)}"
    if len(order.differences) > _SHOWN:
        yield f"  and {len(order.differences) - _SHOWN} more"
