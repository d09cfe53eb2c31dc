"""Memory of the host that a GPU writes into by itself: pinned, of one size, and used again and again.

A copy into it is queued behind the kernels that make the tensor, and the model runs on. An event that is recorded
behind the copy, on the same stream, says when it is there; who reads the bytes waits for it. Pinned memory cannot be
swapped out, so no more of it is taken than one ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tensordiff.capture.engines.torch.writing.ring import Ring, aligned


class PinnedRing(Ring):
    """A ring in pinned memory; raises RuntimeError where the system has none to give."""

    def __init__(self, nbytes: int) -> None:
        self._pinned = torch.empty(aligned(nbytes), dtype=torch.uint8, pin_memory=True)
        super().__init__(nbytes, self._pinned.numpy())

    def copy(self, place: int, tensor: Tensor) -> Any:
        """Queue a copy of a GPU's tensor into a place; gives the event that says when it is there."""
        begin = self.at(place)
        held = self._pinned[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        held.copy_(tensor, non_blocking=True)
        ready = torch.cuda.Event(blocking=True)  # who waits sleeps, and does not spin on a core
        ready.record(torch.cuda.current_stream(tensor.device))
        return ready


def tensor_pieces(tensor: Tensor, most: int) -> Iterator[Tensor]:
    """A tensor in row-major order, in parts of at most so many bytes, none of them a copy."""
    if tensor.nbytes <= most or tensor.dim() == 0:
        yield tensor
        return
    if tensor.is_contiguous():
        tensor = tensor.view(-1)
    rows = most // tensor[0].nbytes
    if rows == 0:
        for row in tensor:
            yield from tensor_pieces(row, most)
        return
    yield from tensor.split(rows)
