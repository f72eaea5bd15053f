"""Read and write the API server through `kubectl get --raw`, `create --raw` and `replace --raw`, so
that every way to log in works as in kubectl.

Knows kubectl's command line and errors, and no objects. A call blocks until kubectl ends. kubectl
keeps the terminal's stdin. Its stderr is shown after a second, for a login prompt, or if it fails.
"""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.cli.facts import Fields, mapping
from gpushare.errors import ApiConflict, ApiError, ApiGone, ApiNotFound, MessageError, SettingsError

PROMPT_AFTER = 1.0
"""Seconds until the stderr of a running kubectl is printed."""

_POST = "30s"

_REFUSED = re.compile(r"^Error from server(?: \((?P<reason>\w+)\))?:")
_KINDS: Mapping[str, tuple[type[ApiError], int]] = {
    "NotFound": (ApiNotFound, 404),
    "Forbidden": (ApiError, 403),
    "Unauthorized": (ApiError, 401),
    "Expired": (ApiGone, 410),
    "Gone": (ApiGone, 410),
    "BadRequest": (ApiError, 400),
    "Conflict": (ApiConflict, 409),
    "AlreadyExists": (ApiConflict, 409),
    "Invalid": (ApiError, 422),
    "TooManyRequests": (ApiError, 429),
}
_COMPLAINT = re.compile(
    rb"^(?:error: |Error from server|The connection to the server|Unable to connect)", re.MULTILINE
)
"""The start of kubectl's final error, which the caller prints."""
_UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
"""Unreserved characters of a URI."""
_LOG_LINE = re.compile(r"[IWEF][0-9]{4} ")
_MAX_LENGTH = 1000


@dataclass(frozen=True)
class Kubectl:
    """A kubectl with the flags that name a cluster."""

    command: str = "kubectl"
    """The program."""
    flags: tuple[str, ...] = ()
    kubeconfig: str = ""
    """One file, a list of files as in KUBECONFIG, or ""."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def get(self, path: str, **query: str) -> Fields:
        """Return the JSON object at a path of the API.

        Raises ApiError with kubectl's message, SettingsError if kubectl cannot be started, or
        MessageError for other output than a JSON object.
        """
        body = self.request("GET", path, query=query)
        try:
            document: object = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"kubectl printed no JSON for {path}") from error
        return mapping(document)

    def request(
        self, method: str, path: str, *, query: Mapping[str, str], timeout: float = math.inf
    ) -> bytes:
        """Return the body of a GET within kubectl's own --request-timeout. Raises as `run`."""
        if method != "GET":
            raise SettingsError(f"kubectl is asked to {method} {path}, and may only get")
        del timeout
        return self.run(*_raw(path, query))

    def create(self, path: str, body: Fields) -> None:
        """Post an object, within the user's --request-timeout or 30 s.

        Raises as `run`; after an ApiError of status 0 the object may exist or not.
        """
        self._send("create", path, body)

    def replace(self, path: str, body: Fields) -> None:
        """Replace the object at the path. Raises as `create`."""
        self._send("replace", path, body)

    def _send(self, verb: str, path: str, body: Fields) -> None:
        from tempfile import NamedTemporaryFile

        with NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(body, file)
            file.flush()
            self.run(
                verb, "--raw", path, "-f", file.name, "--output=", f"--request-timeout={_POST}"
            )

    def namespace(self) -> str:
        """Return kubectl's default namespace."""
        try:
            output = self.run("config", "view", "--minify", "--output=jsonpath={..namespace}")
        except ApiError:  # there is no kubeconfig, as in a pod
            return "default"
        return output.decode(errors="replace").strip() or "default"

    def run(self, *words: str) -> bytes:
        """Return the output of kubectl for these words.

        Raises ApiError and SettingsError as `get`.
        """
        with self._start(words, subprocess.PIPE) as process:
            printed = 0
            try:
                while True:
                    try:
                        output, stderr_text = process.communicate(timeout=PROMPT_AFTER)
                    except subprocess.TimeoutExpired as slow:
                        stderr_text = _COMPLAINT.split(slow.stderr or b"", maxsplit=1)[0]
                        more = stderr_text[printed:].decode(errors="replace")
                        print(more, end="", file=sys.stderr, flush=True)
                        printed = len(stderr_text)
                    else:
                        break
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            # kubectl's message on one line, without lines of its log.
            lines = [line.strip() for line in stderr_text.decode(errors="replace").splitlines()]
            messages = [line for line in lines if line and not _LOG_LINE.match(line)]
            message = " ".join(messages or [line for line in lines if line][-1:])[:_MAX_LENGTH]
            match = _REFUSED.match(message)
            reason = (match["reason"] or "") if match else ""
            kind, status = _KINDS.get(reason, (ApiError, 0))
            raise kind(message or f"kubectl failed with exit code {process.returncode}", status)
        return bytes(output)

    def watch(self, path: str, **query: str) -> "subprocess.Popen[bytes]":
        """Return a kubectl process that prints one watch event a line; the caller stops it."""
        return self._start(_raw(path, {**query, "watch": "1"}), subprocess.DEVNULL)

    def _start(self, words: tuple[str, ...], stderr: int) -> "subprocess.Popen[bytes]":
        environ, flags = dict(self.environ), self.flags
        if self.kubeconfig:
            # kubectl's own --kubeconfig takes one file; the variable takes a list.
            if not _any_there(self.kubeconfig.split(os.pathsep)):
                raise SettingsError(f"kubeconfig: no such file: {self.kubeconfig}")
            environ["KUBECONFIG"] = self.kubeconfig
        try:
            return subprocess.Popen(  # noqa: S603  # no shell; words are arguments
                [self.command, *words, *flags], env=environ, stdout=subprocess.PIPE, stderr=stderr
            )
        except OSError as error:
            raise SettingsError(
                f"cannot start {self.command} ({error.strerror}): install kubectl on PATH, or name"
                " it in the variable KUBECTL"
            ) from error


def _any_there(paths: list[str]) -> bool:
    """Return whether one of the files may exist; kubectl reports files that it cannot read."""
    for path in filter(None, paths):
        try:
            os.stat(path)  # noqa: PTH116 -- pathlib takes as long to import as all of this file
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return True
        return True
    return False


def _raw(path: str, query: Mapping[str, str]) -> tuple[str, ...]:
    """Return kubectl's words for a GET; importing urllib would take longer than all of main."""
    pairs = []
    for key, value in query.items():
        octets = value.encode(errors="surrogateescape")
        escaped = (chr(octet) if octet in _UNRESERVED else f"%{octet:02X}" for octet in octets)
        pairs.append(f"{key}={''.join(escaped)}")
    # A kuberc file (from kubectl 1.34 on) may give `get` an output, which --raw refuses.
    return ("get", "--raw", f"{path}?{'&'.join(pairs)}" if query else path, "--output=")
