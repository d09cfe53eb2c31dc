"""Best-of timing with the methods taking turns, so that a busy moment hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_of(methods: dict[str, Callable[[], object]], seconds: float = 1.0, at_least: int = 5) -> dict[str, float]:
    """The best time of each method, in seconds. One round first, unmeasured, to warm up."""
    for method in methods.values():
        method()
    best = dict.fromkeys(methods, float("inf"))
    rounds, end = 0, time.perf_counter() + seconds * len(methods)
    while rounds < at_least or time.perf_counter() < end:
        for name, method in methods.items():
            start = time.perf_counter()
            method()
            best[name] = min(best[name], time.perf_counter() - start)
        rounds += 1
    return best
