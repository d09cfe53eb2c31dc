from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tensordiff.capture.engines.torch.writing.ring import Ring


def test_what_is_taken_is_not_taken_again_before_it_is_given_back() -> None:
    ring = Ring(192)
    places = [ring.take(60), ring.take(64), ring.take(1)]
    assert ring.take(1) is None
    assert places[0] is not None
    ring.give_back(places[0], 60)
    assert ring.take(65) is None
    assert ring.at(ring.take(64) or 0) == 0


def test_what_does_not_fit_at_the_end_goes_to_the_beginning() -> None:
    ring = Ring(192)
    first, second = ring.take(64), ring.take(64)
    assert first is not None and second is not None
    ring.give_back(first, 64)
    assert ring.take(128) is None  # in one part, and there are two
    ring.give_back(second, 64)
    assert ring.at(ring.take(192) or 0) == 0


def test_of_nothing_there_can_be_many() -> None:
    ring = Ring(0)
    place = ring.take(0)
    assert place is not None and ring.take(0) is None
    assert len(ring.bytes_of(place, 0)) == 0
    ring.give_back(place, 0)
    assert ring.take(0) is not None


@given(sizes=st.lists(st.integers(0, 300), max_size=40), room=st.integers(300, 900))
def test_nobody_writes_into_what_another_holds(sizes: list[int], room: int) -> None:
    ring, held = Ring(room), deque[tuple[int, int, int]]()
    for number, nbytes in enumerate(sizes):
        while (place := ring.take(nbytes)) is None:
            before, length, said = held.popleft()
            assert bytes(ring.bytes_of(before, length)) == bytes([said]) * length
            ring.give_back(before, length)
        ring.bytes_of(place, nbytes)[:] = bytes([number]) * nbytes
        held.append((place, nbytes, number))
    assert all(bytes(ring.bytes_of(place, length)) == bytes([said]) * length for place, length, said in held)
