"""The Python half of the fake CUDA: what ``torch.cuda`` answers, from the counts of ``fake_cuda.cpp``.

``FAKE_CUDA`` is the compiled library, and switches it on. ``FAKE_CUDA_DEVICES`` is how many devices there are, by
default two, ``FAKE_CUDA_MEMORY`` how many bytes each has, ``FAKE_CUDA_PINNED`` how many bytes of the host may be
pinned, ``FAKE_CUDA_GRAPH=1`` says that a CUDA graph is being captured, ``FAKE_CUDA_WRONG=1`` makes linear layers
compute wrong.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NAME = "Fake GPU"
_MEMORY = 1 << 34
_UNLIMITED = (1 << 63) - 1
_NUMBERS = ("current_stream", "late_copies", "bytes_to_host", "limit", "used", "peak", "pinned_used", "pinned_peak")


class Library:
    """The functions of ``fake_cuda.cpp``."""

    def __init__(self) -> None:
        self._loaded = ctypes.CDLL(os.environ["FAKE_CUDA"])
        for name in _NUMBERS:
            getattr(self, name).restype = ctypes.c_int64
        self.last_ticket.restype = ctypes.c_uint64
        self.finish_copies.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_uint64)
        self.set_stream.argtypes = (ctypes.c_int, ctypes.c_int64)
        self.set_limits.argtypes = (ctypes.c_int64, ctypes.c_int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, f"fake_cuda_{name}")


library: Any = None


def load_library() -> None:
    """Load the devices; torch must not have been used yet."""
    global library
    library = Library()
    set_memory()


def set_memory(more: int | None = None) -> None:
    """Let each device have as much memory as the environment says, or so many bytes more than is used now."""
    used = max(int(library.used(device)) for device in range(library.device_count()))
    memory = int(os.environ.get("FAKE_CUDA_MEMORY", _MEMORY)) if more is None else used + more
    library.set_limits(memory, int(os.environ.get("FAKE_CUDA_PINNED", _UNLIMITED)))


def install() -> None:
    """Put the devices into ``torch.cuda``; torch has been imported."""
    import torch

    streams = _streams()
    functions = _device_functions() | _memory_functions() | _random_functions()
    for name, value in {**functions, **streams}.items():
        setattr(torch.cuda, name, value)
    for module in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
        for name in set(vars(module)) & (set(functions) | set(streams)):
            setattr(module, name, getattr(torch.cuda, name))
    torch.storage._StorageBase.clone = _clone(torch.storage._StorageBase.clone)
    torch.version.cuda = "12.8"
    if os.environ.get("FAKE_CUDA_WRONG") == "1":
        torch.nn.functional.linear = _wrong(torch.nn.functional.linear)


def _index(device: Any = None) -> int:
    import torch

    if isinstance(device, int):
        return device
    number = None if device is None else torch.device(device).index
    return int(library.current_device()) if number is None else int(number)


def _streams() -> dict[str, Any]:
    import torch

    class Stream:
        made = 0

        def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None) -> None:
            if stream_id is None:
                Stream.made += 1
            self.device = torch.device("cuda", _index(device))
            self.stream_id = Stream.made if stream_id is None else stream_id
            self.device_index, self.device_type, self.cuda_stream = self.device.index, 1, self.stream_id

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

        def __hash__(self) -> int:
            return hash((self.device, self.stream_id))

        def synchronize(self) -> None:
            library.finish_copies(self.device.index, self.stream_id, library.last_ticket())

        def query(self) -> bool:
            return False

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record(self)
            return event

        def wait_event(self, event: Any) -> None:
            """Kernels run as soon as they are called, so there is nothing to hold up."""

        def wait_stream(self, stream: Any) -> None:
            """Likewise."""

    class Event:
        created: list[dict[str, bool]] = []  # noqa: RUF012 - what each was created with, for tests

        def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
            Event.created.append({"enable_timing": enable_timing, "blocking": blocking})
            self._after: tuple[int, int, int] | None = None

        def record(self, stream: Any = None) -> None:
            stream = stream or current_stream()
            self._after = (stream.device.index, stream.stream_id, library.last_ticket())

        def synchronize(self) -> None:
            if self._after is not None:
                library.finish_copies(*self._after)

        def wait(self, stream: Any = None) -> None:
            """As ``Stream.wait_event``."""

        def query(self) -> bool:
            return False

    def current_stream(device: Any = None) -> Stream:
        index = _index(device)
        return Stream(index, stream_id=int(library.current_stream(index)))

    @contextmanager
    def stream(entered: Any) -> Iterator[None]:
        if entered is None:
            yield
            return
        index, device = entered.device.index, library.current_device()
        before = library.current_stream(index)
        library.set_device(index)
        library.set_stream(index, entered.stream_id)
        try:
            yield
        finally:
            library.set_stream(index, before)
            library.set_device(device)

    return {
        "Stream": Stream, "Event": Event, "current_stream": current_stream, "stream": stream,
        "default_stream": lambda device=None: Stream(device, stream_id=0),
        "is_current_stream_capturing": lambda: os.environ.get("FAKE_CUDA_GRAPH") == "1",
    }  # fmt: skip


def _device_functions() -> dict[str, Any]:
    class device:  # noqa: N801 - as torch calls it
        def __init__(self, entered: Any) -> None:
            self.idx, self._before = _index(entered), 0

        def __enter__(self) -> None:
            self._before = library.current_device()
            library.set_device(self.idx)

        def __exit__(self, *_: object) -> None:
            library.set_device(self._before)

    def properties(device: Any = None) -> Any:
        return SimpleNamespace(
            name=NAME, total_memory=int(library.limit(_index(device))), major=9, minor=0, multi_processor_count=1,
            gcnArchName="", warp_size=32, uuid="fake", is_integrated=False,
        )  # fmt: skip

    return {
        "device": device, "is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None,
        "_lazy_init": lambda: None, "device_count": lambda: int(library.device_count()),
        "current_device": lambda: int(library.current_device()),
        "set_device": lambda device: library.set_device(_index(device)),
        "synchronize": lambda device=None: library.finish_all_copies(_index(device)),
        "get_device_properties": properties, "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: (9, 0),
        "is_bf16_supported": lambda including_emulation=True: True,
    }  # fmt: skip


def _memory_functions() -> dict[str, Any]:
    def counted(count: Callable[[int], int]) -> Callable[..., int]:
        return lambda device=None: int(count(_index(device)))

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        limit = int(library.limit(_index(device)))
        return limit - int(library.used(_index(device))), max(limit, _MEMORY)  # of the whole, others took some

    return {
        "memory_allocated": counted(library.used), "memory_reserved": counted(library.used),
        "max_memory_allocated": counted(library.peak), "mem_get_info": mem_get_info,
        "empty_cache": lambda: None, "ipc_collect": lambda: None,
    }  # fmt: skip


def _random_functions() -> dict[str, Any]:
    import torch

    generators = [torch.Generator().manual_seed(0) for _ in range(library.device_count())]

    def seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    return {
        "manual_seed": lambda seed: generators[_index()].manual_seed(seed) and None,
        "manual_seed_all": seed_all,
        "get_rng_state": lambda device="cuda": generators[_index(device)].get_state(),
        "get_rng_state_all": lambda: [generator.get_state() for generator in generators],
        "set_rng_state": lambda state, device="cuda": generators[_index(device)].set_state(state) and None,
    }


def _clone(plain: Any) -> Any:
    """A torch for the CPU does not make storages elsewhere by itself, as deepcopy asks for."""
    import torch

    def clone(storage: Any) -> Any:
        if storage.device.type != "cuda":
            return plain(storage)
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).clone().untyped_storage()

    return clone


def _wrong(plain: Any) -> Any:
    """A device that computes wrong."""
    return lambda x, *args, **kwargs: plain(x, *args, **kwargs) * (1.01 if x.is_cuda else 1.0)


def counts() -> dict[str, int]:
    """What the devices counted so far."""
    names = ("late_copies", "bytes_to_host", "pinned_used", "pinned_peak")
    peaks = {f"peak_{device}": int(library.peak(device)) for device in range(library.device_count())}
    return {name: int(getattr(library, name)()) for name in names} | peaks


def write_counts(path: str) -> None:
    """Write ``counts`` as JSON, for a test in another process."""
    import json

    Path(path).write_text(json.dumps(counts()))
