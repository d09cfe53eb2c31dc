"""Best-of timing with the methods taking turns, so that a busy moment hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable

BURST = 5
_SLOW_S = 0.2


def best_of(methods: dict[str, Callable[[], object]], seconds: float = 1.0, at_least: int = 3) -> dict[str, float]:
    """The best time of each method, in seconds.

    A turn is a few calls in a row, so that no method is timed on a cache that another has just emptied; a slow one
    fills its own. One call first, unmeasured, to warm up.
    """
    best = dict.fromkeys(methods, float("inf"))
    bursts = {name: BURST if _seconds(method) < _SLOW_S else 1 for name, method in methods.items()}
    rounds, end = 0, time.perf_counter() + seconds * len(methods)
    while rounds < at_least or time.perf_counter() < end:
        for name, method in methods.items():
            best[name] = min(best[name], *(_seconds(method) for _ in range(bursts[name])))
        rounds += 1
    return best


def _seconds(method: Callable[[], object]) -> float:
    start = time.perf_counter()
    method()
    return time.perf_counter() - start
