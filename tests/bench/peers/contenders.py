"""The extenders that are compared, each as a process before the same API server.

Knows how each is started, and how kube-scheduler is told to call it: the same configuration for
all, but for the extender's own entry. Both run with their defaults, the original with its quietest
log, ours without a Lease. The least extender answers filter with the first name, or with all and
scores none, and writes the Binding without an annotation: what any extender costs, with the entry
of ours.
"""

import copy
import http.client
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.bench.peers import usage
from tests.e2e.binaries import RELEASE, tool
from tests.e2e.extender import RealExtender
from tests.e2e.pair import port_of, printed
from tests.e2e.plane import EXTENDER, Plane
from tests.e2e.processes import Process, is_listening
from tests.integration.process import free_port

PREFIX = "/gpushare-scheduler"
ALONE, ALL, BEST, ORIGINAL = "no extender", "ours, all", "ours, best", "original"
LEAST, LEAST_ALL = "least, first", "least, all"


class Contender(ABC):
    """An extender that can be started and stopped; `port` is where kube-scheduler calls."""

    def __init__(self, title: str, port: int, mark: str) -> None:
        self.title, self.port, self._mark = title, port, mark

    @abstractmethod
    def start(self) -> None:
        """Return after the first answer."""

    @abstractmethod
    def stop(self) -> None:
        """End the extender."""

    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """The extender's entry in kube-scheduler's configuration."""

    def pids(self) -> list[int]:
        """All processes of the extender."""
        return usage.started(self._mark)

    def own_pids(self) -> list[int]:
        """The same without the process that makes policies."""
        return usage.called(self._mark)


class GpushareExtender(Contender):
    """`gpushare serve`, with the file that `gpushare scheduler-config` prints."""

    def __init__(self, plane: Plane, folder: Path, title: str, *flags: str) -> None:
        text = printed(RELEASE)
        self._entry = yaml.safe_load(text)["extenders"][0]
        file = folder / f"{title.replace(', ', '-')}.yaml"
        file.write_text(text)
        super().__init__(title, port_of(text), str(file))
        self._extender = RealExtender(
            folder,
            self.port,
            plane.kubeconfig(EXTENDER),
            *("--scheduler-config", str(file), "--leadership", "off", *flags),
        )

    def start(self) -> None:
        self._extender.start()

    def stop(self) -> None:
        self._extender.stop()

    def entry(self) -> dict[str, Any]:
        return dict(self._entry)


class Original(Contender):
    """The aliyun extender, with the entry of its own documentation."""

    def __init__(self, plane: Plane, folder: Path, program: Path) -> None:
        super().__init__(ORIGINAL, free_port(), program.name)
        self._folder = folder
        self._command = [
            *("env", f"PORT={self.port}", f"KUBECONFIG={plane.kubeconfig(EXTENDER)}"),
            *("LOG_LEVEL=error", str(program)),
        ]
        self._process: Process | None = None

    def start(self) -> None:
        self._process = Process("original", self._command, self._folder)
        self._process.wait(self._answers, "does not answer")

    def stop(self) -> None:
        if self._process:
            self._process.kill()

    def entry(self) -> dict[str, Any]:
        return {
            "urlPrefix": f"http://127.0.0.1:{self.port}{PREFIX}",
            "filterVerb": "filter",
            "bindVerb": "bind",
            "enableHTTPS": False,
            # The bind takes longer than the default of 5 s if some are running.
            "httpTimeout": "60s",
            "nodeCacheCapable": True,
            "ignorable": False,
            "managedResources": [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}],
        }

    def _answers(self) -> bool:
        """The extender listens when the caches are full."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with suppress(OSError):
            connection.request("GET", "/version")
            connection.getresponse().read()
            connection.close()
            return True
        connection.close()
        return False


class LeastExtender(Contender):
    """The least extender there can be (tools/limit)."""

    def __init__(self, plane: Plane, folder: Path, title: str) -> None:
        text = printed(RELEASE)
        super().__init__(title, port_of(text), "limit")
        self._entry = yaml.safe_load(text)["extenders"][0]
        self._entry.pop("preemptVerb", None)
        if title == LEAST_ALL:
            self._entry["filterVerb"] = "all"
        else:
            self._entry.pop("prioritizeVerb", None)
        token = folder / "limit.token"
        token.write_text(plane.token(EXTENDER))
        self._command: list[str | Path] = [
            tool("limit"),
            str(self.port),
            plane.url,
            plane.ca,
            token,
        ]
        self._folder = folder
        self._process: Process | None = None

    def start(self) -> None:
        self._process = Process("limit", self._command, self._folder)
        self._process.wait(lambda: is_listening(self.port), "does not answer")

    def stop(self) -> None:
        if self._process:
            self._process.kill()

    def entry(self) -> dict[str, Any]:
        return dict(self._entry)


def scheduler_file(
    folder: Path, kubeconfig: Path, contender: Contender | None, percentage: int
) -> Path:
    """kube-scheduler's configuration: ours, with its client's limit out of the way.

    percentage: of nodes to score; 100 by our documentation, 0 for kube-scheduler's default.
    """
    document = yaml.safe_load(printed(RELEASE))
    document["percentageOfNodesToScore"] = percentage
    limits = {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 10000}
    document["clientConnection"] = limits
    document["leaderElection"] = {"leaderElect": False}
    document["extenders"] = [copy.deepcopy(contender.entry())] if contender else []
    file = folder / "kube-scheduler.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def contenders(
    plane: Plane, folder: Path, original: Path | None, titles: Sequence[str]
) -> list[Contender]:
    """Those of the titles that there are."""
    all_contenders: list[Contender] = []
    for title in titles:
        if title == ORIGINAL and original:
            all_contenders.append(Original(plane, folder, original))
        elif title in {LEAST, LEAST_ALL}:
            all_contenders.append(LeastExtender(plane, folder, title))
        elif title in {ALL, BEST}:
            all_contenders.append(
                GpushareExtender(plane, folder, title, "--filter-answer", title.split()[-1])
            )
    return all_contenders
