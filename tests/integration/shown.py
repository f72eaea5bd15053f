"""A demo with its page: start, requests, end; and the report of inspect on its cluster."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpushare.wire.annotations import ALIYUN
from gpushare_localcluster.client import ApiClient
from tests.integration.test_demo import COMMAND

GPUSHARE = COMMAND[:-1]
READ = """
import sys, urllib.request
path = sys.argv[sys.argv.index("--raw") + 1]
print(urllib.request.urlopen({server!r} + path).read().decode())
"""


class Shown:
    """A demo with its page, and the report of inspect on its cluster."""

    def __init__(self, folder: Path, lines: Iterator[str]) -> None:
        result = [next(lines)]
        while "KUBECONFIG" not in result[-1]:
            result.append(next(lines))
        text = "".join(result)
        address = re.search(r"the cluster on a page: (http://127\.0\.0\.1:\d+/ui)\n", text)
        config = re.search(r"KUBECONFIG=(\S+)", text)
        assert address
        assert config
        self.url = address[1]
        server = re.search(r"server: (\S+)", Path(config[1]).read_text())
        assert server
        self.api = ApiClient(server[1], user_agent="test")
        # inspect asks kubectl for GETs with credentials; this API server needs no credentials.
        kubectl = folder / "kubectl"
        kubectl.write_text(f"#!{sys.executable}\n{READ.format(server=server[1])}\n")
        kubectl.chmod(0o755)
        self._environment = {**os.environ, "KUBECONFIG": config[1], "KUBECTL": str(kubectl)}

    def inspect(self) -> dict[str, Any]:
        command = [*GPUSHARE, "inspect", "-o", "json"]
        completed = subprocess.run(
            command, env=self._environment, capture_output=True, check=False, timeout=60
        )
        assert completed.returncode == 0, completed.stderr
        document: dict[str, Any] = json.loads(completed.stdout)
        return document

    def books(self, resource: str = ALIYUN.resource) -> dict[str, Any]:
        """The part of the document that the page reads about a resource."""
        address = urlsplit(self.url)
        client = http.client.HTTPConnection(address.netloc, timeout=20)
        client.request("GET", f"{address.path}/books.json")
        answer = client.getresponse()
        assert answer.status == 200
        parts = json.loads(answer.read())["resources"]
        client.close()
        (part,) = (item for item in parts if item["resource"] == resource)
        return part  # type: ignore[no-any-return]  # JSON


@contextmanager
def demo(folder: Path, scenario: str) -> Iterator[Shown]:
    """A demo of this scenario that keeps its cluster; the folder is for its files."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    command = [*COMMAND, scenario, "--ui"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            shown_object = Shown(folder, iter(process.stdout))
            yield shown_object
            shown_object.api.close()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
