"""Keeps the device plug-in registered, whatever becomes of the kubelet and of our socket.

A kubelet that starts removes all sockets of the folder and makes its own anew, so the times of its
socket tell of it (its inode number does not: file systems use them again). The next start of ours
then takes the kubelet's record for what has been given out.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpushare.device_plugin.kubelet import SOCKET, KubeletError, register
from gpushare.device_plugin.server import PluginServer
from gpushare.errors import GpuShareError, SettingsError

log = logging.getLogger("gpushare.registration")

OURS = "gpushare.sock"
ORIGINAL = "aliyungpushare.sock"
"""The socket of gpushare-device-plugin, which serves the same resource."""

_LOOK_SECONDS = 0.2
_LONGEST_PAUSE = 30.0
_UNWATCHED_SECONDS = 2.0

Stamp = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Sockets:
    """The kubelet's and our socket, as they were when we registered."""

    kubelet: Stamp
    ours: Stamp


class Registration:
    """The thread. before: what is to be done each time before the kubelet is told of us."""

    def __init__(
        self,
        folder: Path,
        resource: str,
        server: PluginServer,
        before: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._resource = resource
        self._server = server
        self._before = before
        self._clock = clock
        self._registered: _Sockets | None = None
        self._watched_at = 0.0
        self._failures = 0
        self._said = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def start(self) -> None:
        """Register, and stay registered."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and close our socket."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(15.0)
        self._server.stop()

    def wrong(self) -> str:
        """Return why the kubelet does not know of us, or ""."""
        if self._registered is None:
            return self._said or "not registered with the kubelet yet"
        return "" if self._server.watched else "the kubelet does not follow our devices"

    def alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
                pause = _LOOK_SECONDS
            except (GpuShareError, OSError) as error:
                pause = self._failed(error)
            except Exception as error:  # the thread must go on: without it nothing is served
                log.exception("registration failed")
                pause = self._failed(error)
            self._stopping.wait(pause)

    def _failed(self, error: Exception) -> float:
        """Return how many seconds to wait until the next try."""
        self._registered = None
        self._failures += 1
        if str(error) != self._said:
            self._said = str(error)
            log.warning("not registered: %s", error)
        return float(min(_LONGEST_PAUSE, _LOOK_SECONDS * 2 ** min(self._failures, 8)))

    def _look(self) -> None:
        kubelet = _stamp(self._folder / SOCKET)
        if kubelet is None:
            raise KubeletError(f"{self._folder / SOCKET} is not there: is the kubelet running?")
        known = self._registered
        if known is None or known.kubelet != kubelet or known.ours != _stamp(self._folder / OURS):
            self._register(kubelet)
            return
        now = self._clock()
        if self._server.watched:
            self._watched_at, self._failures = now, 0
        elif now > self._watched_at + _UNWATCHED_SECONDS:
            raise KubeletError(
                f"the kubelet has stopped to follow our devices: has another device plug-in"
                f" registered {self._resource}?"
            )

    def _register(self, kubelet: Stamp) -> None:
        self._server.stop()
        refuse_others(self._folder)
        self._before()
        self._server.start()
        ours = _stamp(self._folder / OURS)
        if ours is None:
            raise OSError(f"{self._folder / OURS} was removed at once")
        register(self._folder, OURS, self._resource)
        self._registered = _Sockets(kubelet, ours)
        self._watched_at, self._said = self._clock(), ""
        log.info("registered resource=%s folder=%s", self._resource, self._folder)


def refuse_others(folder: Path) -> None:
    """Return where no other device plug-in for the resource listens. Raises SettingsError."""
    for name in (OURS, ORIGINAL):
        if _answers(folder / name):
            raise SettingsError(
                f"another device plug-in serves {folder / name}; there can be one: stop it first"
            )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(str(path))
        except OSError:
            return False
        return True


def _stamp(path: Path) -> Stamp | None:
    """Return what changes when the socket is made anew; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ctime_ns, status.st_ino
