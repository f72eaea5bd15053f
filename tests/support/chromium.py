"""A real Chromium for tests and pictures, driven over a pipe by the DevTools protocol.

`program()` returns None without a Chromium. Debian's package is `chromium`; these tests need
neither playwright nor selenium.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_SILENCE = 60.0
"""Seconds until the browser is given up."""


def program() -> str | None:
    """The browser's program, or None."""
    return next((result for name in _NAMES if (result := shutil.which(name))), None)


class Tab:
    """One page of the browser. problems: complaints of the console and of policies."""

    def __init__(self, write: int, old_version: int) -> None:
        self._write, self._read = write, old_version
        self._rest = b""
        self._number = 0
        self._session = ""
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        command = {"id": self._number, "method": method, "params": parameters} | session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, of = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(of["exceptionDetails"]))
        elif method == "Log.entryAdded" and of["entry"]["level"] == "error":
            self.problems.append(f"{of['entry']['text']} {of['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning"):
            self.problems.append(json.dumps(of["args"]))
        elif method == "Audits.issueAdded" and "ContentSecurityPolicy" in of["issue"]["code"]:
            self.problems.append(json.dumps(of["issue"]))

    def open(self, url: str) -> None:
        """Go there."""
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited."""
        finished = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in finished, finished
        return finished["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value of the expression, once it is true."""
        deadline = time.monotonic() + _SILENCE
        while not (value := self.ask(expression)):
            assert time.monotonic() < deadline, f"{expression}: {self.problems}"
            time.sleep(0.05)
        return value

    def press(self, *keys: str) -> None:
        """Press keys by name, as in KeyboardEvent.key."""
        text = {"Enter": "\r", " ": " "}
        for key in keys:
            typed = {"text": text[key]} if key in text else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **typed)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def size(self, width: int, height: int = 800) -> None:
        """Have the window as large as this, in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def scheme(self, scheme: str) -> None:
        """Prefer light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, file: Path) -> None:
        """Write the visible page as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def pdf(self) -> bytes:
        """The printed page, as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A tab of a new Chromium with its profile in the folder."""
    result = program()
    assert result, "there is no Chromium"
    (commands, write), (old_version, answers) = os.pipe(), os.pipe()
    # The browser reads from descriptor 3 and writes to 4.
    script = f'exec "$@" 3<&{commands} 4>&{answers}'
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    flags += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    flags += ["--disable-dev-shm-usage", f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        ["/bin/bash", "-c", script, "sh", result, *flags],
        pass_fds=(commands, answers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(commands)
    os.close(answers)
    try:
        yield Tab(write, old_version)
    finally:
        os.close(write)
        os.close(old_version)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
