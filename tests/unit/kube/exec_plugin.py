"""An exec credential plug-in of a kubeconfig: a shell script that does as a file says."""

import json
from pathlib import Path
from typing import Any

_VERSION = "client.authentication.k8s.io/v1"


class ExecPlugin:
    """token: the token to print, None for a failure; each token has expired already."""

    def __init__(self, folder: Path) -> None:
        self._token = folder / "plug-in.token"
        self._runs = folder / "plug-in.runs"
        self._slow = folder / "plug-in.slow"
        self._hangs = folder / "plug-in.hangs"
        self._runs.touch()
        self._script = folder / "plug-in"
        status = {"token": "TOKEN", "expirationTimestamp": "2020-01-01T00:00:00Z"}
        answer = {"apiVersion": _VERSION, "kind": "ExecCredential", "status": status}
        answer_text = json.dumps(answer).replace("TOKEN", f"'$(cat {self._token})'")
        self._script.write_text(
            f"#!/bin/sh\necho >> {self._runs}\n[ -e {self._slow} ] && sleep 1\n"
            f"while [ -e {self._hangs} ]; do sleep 0.1; done\n"
            f"[ -e {self._token} ] || exit 1\necho '{answer_text}'\n"
        )
        self._script.chmod(0o755)

    @property
    def user(self) -> dict[str, Any]:
        """Return the user of a kubeconfig with this plug-in."""
        exec_config = {
            "apiVersion": _VERSION,
            "command": str(self._script),
            "interactiveMode": "Never",
        }
        return {"exec": exec_config}

    @property
    def runs(self) -> int:
        """Return the number of runs."""
        return len(self._runs.read_text())

    def hand_out(self, token: str | None) -> None:
        """Set the token of the next runs."""
        if token is None:
            self._token.unlink()
        else:
            self._token.write_text(token)

    def be_slow(self) -> None:
        """Take a second from now on."""
        self._slow.touch()

    def hang(self) -> None:
        """Give no answer until `go_on`."""
        self._hangs.touch()

    def go_on(self) -> None:
        """Answer again."""
        self._hangs.unlink()
