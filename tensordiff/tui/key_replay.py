"""Replays keys that were typed before the comparison could handle them, one by one and in order.

A key may move the focus, and the next one must go there. So each is sent only after the previous one and the messages
it caused were handled. How long that takes depends on the load of the machine, so a timer would not do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from textual.app import App
from textual.events import Key
from textual.message_pump import MessagePump

_ROUNDS = 4
"""How many messages may follow from each other before the focus moves: enter submits the filter, which is left for the
table, which is focused; and one to spare.
"""
_MOST_S = 2.0
"""How long to wait for a widget that a key has removed."""


class KeyReplay:
    """Waiting keys, and whether newly typed ones must wait behind them."""

    def __init__(self) -> None:
        self._waiting: deque[Key] = deque()
        self._sent: Key | None = None
        self._is_running = False

    def begin(self, keys: Iterable[Key]) -> None:
        """Replay these keys, and everything typed until ``run`` has ended."""
        self._waiting.extend(keys)
        self._is_running = True

    def takes(self, key: Key) -> bool:
        """Whether a key that reached the app must wait; it is then queued."""
        if not self._is_running or key is self._sent:
            return False
        self._waiting.append(key)
        return True

    async def run(self, app: App[int]) -> None:
        """Send the keys until none is left."""
        await handle_messages(app)  # the new screen's first focus
        while self._waiting:
            key = self._waiting.popleft()
            path = [app, *(app.focused or app.screen).ancestors_with_self]
            self._sent = Key(key.key, key.character)
            app.post_message(self._sent)
            for node in path * _ROUNDS:
                await handle_messages(node)
            await handle_messages(app)
        self._is_running = False


async def handle_messages(node: MessagePump) -> None:
    """Wait until a widget has handled the messages in its queue, unless it is closed or closes meanwhile."""
    is_done = asyncio.Event()
    if node.call_later(is_done.set):
        with suppress(TimeoutError):
            await asyncio.wait_for(is_done.wait(), _MOST_S)
