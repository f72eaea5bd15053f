"""Keeps the device plug-in registered when the kubelet restarts or our socket is removed.

A starting kubelet removes all sockets of the folder and creates kubelet.sock again, so the time of
that socket shows a restart (the inode number does not: file systems reuse numbers). Before the new
registration, the kubelet's record is read for the served containers.
"""

import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from gpushare.daemon.loop import Loop
from gpushare.device_plugin.kubelet import SOCKET, KubeletError, register
from gpushare.device_plugin.server import PluginServer
from gpushare.errors import GpuShareError, SettingsError
from gpushare.logline import Line

log = logging.getLogger("gpushare.registration")

ORIGINAL = "aliyungpushare.sock"
"""The socket of gpushare-device-plugin, which serves the same resource."""

_OURS = "gpushare-"
_LOOK_SECONDS = 0.1
_FOLLOWED_LOOK_SECONDS = 0.5
"""Seconds between two looks while ListAndWatch is open; the end of that call wakes the loop."""
_FIRST_PAUSE = 0.025
"""Seconds to the second try: a starting kubelet binds the socket first, and listens then."""
_LONGEST_PAUSE = 30.0
_UNWATCHED_SECONDS = 2.0
_STEADY_SECONDS = 30.0
"""After being followed for these seconds, the count of losses starts again at 0."""
_DEAD_SECONDS = 60.0

Stamp = tuple[int, int]


def own_socket() -> str:
    """Return a name for the socket of this process, different for each process.

    So a new process can register before the old process ends: a kubelet tells processes apart by
    the sockets (kubernetes#135437; older kubelets: see `Registration`).
    """
    return f"{_OURS}{secrets.token_hex(4)}.sock"


@dataclass(slots=True)
class _Registered:
    """Stamps of the kubelet's socket and ours at the last registration, with the time."""

    kubelet: Stamp
    plugin: Stamp
    at: float


@dataclass(eq=False)
class Registration(Loop):
    """The thread. before: called before each registration.

    Kubelets from before kubernetes#135437 drop the newer of two processes when the older one ends;
    so a process that is no longer followed registers again at once.
    """

    folder: Path
    resource: str
    server: PluginServer
    before: Callable[[], None]
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        failed = "registration failed"
        super().__init__(
            "registration", self.step, _LOOK_SECONDS, log=log, failed=failed, at_once=True
        )
        self._kubelet = self.folder / SOCKET
        self._registered: _Registered | None = None
        self._seen: Stamp | None = None
        self._due = 0.0
        self._failures = 0
        self._losses = 0
        self._last_error = ""

    def stop(self, seconds: float = 15.0) -> None:
        """End the thread, and close our socket."""
        super().stop(seconds)
        self.server.stop()

    def problem(self) -> str:
        """Return why the kubelet does not follow us, or ""."""
        if self._registered is None:
            return self._last_error or "not registered with the kubelet yet"
        return "" if self.server.watched else "the kubelet does not follow our devices"

    def step(self) -> float:
        """Register if that is due; return the seconds to the next look."""
        now, kubelet = self.clock(), _stamp(self._kubelet)
        if kubelet != self._seen:
            self._seen, self._failures, self._losses, self._due = kubelet, 0, 0, now
        if now < self._due:
            return min(_LOOK_SECONDS, self._due - now)
        try:
            self._look(kubelet)
        except Exception as error:  # the thread must go on: nothing else registers
            if not isinstance(error, GpuShareError | OSError):
                log.exception("registration failed")
            self._registered = None
            self._failures += 1
            if str(error) != self._last_error:
                self._last_error = str(error)
                log.warning(Line("not registered", error=error))
            tries = self._failures + self._losses
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(tries - 1, 16))
            self._due = self.clock() + pause
            return min(_LOOK_SECONDS, pause)
        return _FOLLOWED_LOOK_SECONDS if self.server.watched else _LOOK_SECONDS

    def _look(self, kubelet: Stamp | None) -> None:
        """Register if the kubelet or our socket is new, or we are lost. Raises KubeletError."""
        registered = self._registered
        if (
            registered is None
            or registered.kubelet != kubelet
            or registered.plugin != _stamp(self.server.socket)
        ):
            self._register(kubelet)
        elif self.server.watched:
            if self.clock() > registered.at + _STEADY_SECONDS:
                self._losses = 0
        elif self.server.was_watched or self.clock() > registered.at + _UNWATCHED_SECONDS:
            if not _answers(self._kubelet):
                raise KubeletError(f"{self._kubelet} does not answer: is the kubelet running?")
            self._losses += 1
            if self._losses > 1:
                raise KubeletError(
                    "the kubelet has stopped to follow our devices again: has another device"
                    f" plug-in registered {self.resource}?"
                )
            log.info("the kubelet does not follow our devices any more; registering again")
            self._register(kubelet)

    def _register(self, kubelet: Stamp | None) -> None:
        if kubelet is None or not _answers(self._kubelet):
            raise KubeletError(f"{self._kubelet} does not answer: is the kubelet running?")
        self.server.stop()
        refuse_others(self.folder)
        for path in self.folder.glob(f"{_OURS}*.sock"):  # sockets of killed processes
            with contextlib.suppress(OSError):
                # A new one may be bound, with nobody listening yet.
                if time.time() > path.stat().st_ctime + _DEAD_SECONDS and not _answers(path):
                    path.unlink()
        self.before()
        self.server.start(self.wake)
        plugin_stamp = _stamp(self.server.socket)
        if plugin_stamp is None:
            raise OSError(f"{self.server.socket} was removed at once")
        register(self.folder, self.server.socket.name, self.resource)
        self._registered = _Registered(kubelet, plugin_stamp, self.clock())
        self._failures, self._last_error = 0, ""
        log.info(Line("registered", resource=self.resource, socket=self.server.socket))


def refuse_others(folder: Path) -> None:
    """Check that the original's device plug-in does not listen. Raises SettingsError otherwise."""
    if _answers(folder / ORIGINAL):
        raise SettingsError(
            f"another device plug-in serves {folder / ORIGINAL}; there can be one: stop it first"
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
    """Return (time, inode) of the socket, different for each socket; None without one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ctime_ns, status.st_ino
