"""A process that forks capture's children from one that has imported a framework already; run as a script.

``PYTHON fork_server.py FOLDER`` listens at a socket in the folder for each kind of child that a file there names, and
lives as long as its standard input. When a kind is first asked for, it forks a process that imports what children of
that kind import, and that one answers from then on. A request is one message: a JSON object, and with it the
descriptors that the child is to have. The answer is the child's process id, and when the child has ended its status,
each a message. See ``forked_children`` for the other side.
"""

from __future__ import annotations

import array
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

MAX_REQUEST = 1 << 20
_MAX_DESCRIPTORS = 16


def main(folder: str, kinds: dict[str, list[str]]) -> None:
    """Have a process for each kind that is asked for, until standard input closes."""
    listening = {kind: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for kind in kinds}
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        for kind, waiting in listening.items():
            waiting.bind(f"{folder}/{kind}")
            waiting.listen(64)
            selector.register(waiting, selectors.EVENT_READ, kind)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            asked = [key.data for key, _ in selector.select()]
            if None in asked:
                break
            for kind in asked:
                selector.unregister(listening[kind])
                if os.fork() == 0:
                    _serve(listening[kind], kinds[kind])
                listening[kind].close()  # of a kind that does not import nobody answers: it is refused
    while _reap(0):
        pass


def _serve(listening: socket.socket, modules: list[str]) -> None:
    """Import, then answer requests until standard input closes, and end the children that are left."""
    attending: set[int] = set()
    try:
        for module in modules:
            import_module(module)
        gc.collect()
        gc.freeze()  # what is imported stays shared with the children
        with selectors.DefaultSelector() as selector:
            selector.register(listening, selectors.EVENT_READ)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while sys.stdin not in [key.fileobj for key, _ in selector.select()]:
                connection, _ = listening.accept()
                if (pid := os.fork()) == 0:
                    _attend(connection)
                attending.add(pid)
                connection.close()
                while ended := _reap(os.WNOHANG):
                    attending.discard(ended)
        for pid in attending:
            os.kill(pid, signal.SIGTERM)
        while _reap(0):
            pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _reap(how: int) -> int:
    """Take the status of one that is done; 0 where there is none."""
    try:
        return os.waitpid(-1, how)[0]
    except ChildProcessError:
        return 0


def _attend(connection: socket.socket) -> None:
    """Fork one child, tell its process id, wait for it, tell how it ended."""
    status = 1
    try:
        message, ancillary, _, _ = connection.recvmsg(MAX_REQUEST, socket.CMSG_LEN(_MAX_DESCRIPTORS * 4))
        given = array.array("i", ancillary[0][2])
        request = json.loads(message)
        ready, tell_ready = os.pipe()
        if (pid := os.fork()) == 0:
            _become(request, list(given), tell_ready)
        for descriptor in (*given, tell_ready):
            os.close(descriptor)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
        os.read(ready, 1)  # as of a process that was started: it leads its session before anyone can kill that
        connection.send(str(pid).encode())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.send(str(status).encode())
        status = 0
    except BrokenPipeError:
        status = 0  # whoever asked has ended
    finally:
        os._exit(status)


def _become(request: dict[str, Any], given: list[int], tell_ready: int) -> None:
    """Be what ``PYTHON -m MODULE`` would be in a new session with these descriptors, folder and environment."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in request["ignored"] else _usual(number))
        os.write(tell_ready, b".")
        _take_descriptors(given, request["numbers"])
        os.umask(request["umask"])
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[:] = request["path"] + [folder for folder in sys.path if folder not in request["path"]]
        sys.argv[:] = ["-m", *request["arguments"]]
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _usual(number: signal.Signals) -> Any:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def _take_descriptors(given: list[int], numbers: list[int]) -> None:
    """Have each at the number that it has in the process that asked, and no other."""
    above = max([*given, *numbers]) + 1
    for offset, descriptor in enumerate(given):
        os.dup2(descriptor, above + offset)
    for offset, number in enumerate(numbers):
        os.dup2(above + offset, number, inheritable=number <= 2)
    first = 0
    for number in [*sorted(numbers), os.sysconf("SC_OPEN_MAX")]:
        if first < number:  # from 0 to 0 Python closes them all
            os.closerange(first, number)
        first = number + 1


if __name__ == "__main__":
    main(sys.argv[1], json.loads((Path(sys.argv[1]) / "kinds").read_text("utf-8")))
