"""The demo's autoscaler, with the extender's options for autoscalers: on and off together.

After off, the extender restarts without the options, and removes the objects left behind. Tested in
`localcluster/tests/test_demo_autoscaling.py`, and in `tests/integration/test_demo.py`, which runs
it as the demo does.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from gpushare.errors import ApiConflict, ApiNotFound, SettingsError
from gpushare.wire.nodes import SHAPE
from gpushare.wire.placeholders import FOR
from gpushare.wire.scale_down import KEYS, OURS
from gpushare_localcluster.autoscaler import GROUPS, MAPS, STATUS, Group, RunningAutoscaler
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.demo.manifests import node_document
from gpushare_localcluster.demo.plan import NodePlan
from gpushare_localcluster.demo.processes import ExtenderProcess

PLACEHOLDERS = "placeholders"
"""The namespace of placeholders."""

_HURRIED = "gpushare_localcluster.demo.hurried"
_PATIENCE = 20.0
_POLL = 0.05
_MOST_DEVICES = 64


class Autoscaling:
    """An autoscaler on the API server at `url`, beside the extender; off at first.

    report: called with a text for each action of the autoscaler.
    """

    def __init__(
        self, api: ApiClient, url: str, extender: ExtenderProcess, report: Callable[[str], None]
    ) -> None:
        self._api = api
        self._url = url
        self._extender = extender
        self._told = report
        self._running: RunningAutoscaler | None = None

    @property
    def is_on(self) -> bool:
        """Whether the autoscaler runs."""
        return self._running is not None

    def on(self) -> None:
        """Start the autoscaler, and the extender with its options. Raises GpuShareError."""
        if self._running is not None:
            return
        with suppress(ApiConflict):
            self._api.create("/api/v1/namespaces", {"metadata": {"name": PLACEHOLDERS}})
        self._extender.stop()
        options = ("--scale-down-guard", "--placeholders", PLACEHOLDERS)
        self._extender.start(*options, module=_HURRIED)
        client = ApiClient(self._url, user_agent="gpushare-local-autoscaler")
        self._running = RunningAutoscaler(client, read_groups, report=self._told)
        self._running.start()

    def off(self) -> str | None:
        """End the autoscaler, and start the extender without the options; return the objects that
        the options still leave behind after a while, None for none.

        Raises GpuShareError.
        """
        self.stop()
        for name in (GROUPS, STATUS):
            with suppress(ApiNotFound):
                self._api.delete(f"{MAPS}/{name}")
        self._extender.stop()
        self._extender.start(module=_HURRIED)
        deadline = time.monotonic() + _PATIENCE
        while (leftovers := self._left()) and time.monotonic() < deadline:
            time.sleep(_POLL)
        return leftovers

    def stop(self) -> None:
        """End the autoscaler alone, not the extender."""
        if self._running is not None:
            self._running.stop()
        self._running = None

    def _left(self) -> str | None:
        leftovers = [
            f"placeholder {pod['metadata']['name']}"
            for pod in self._api.get("/api/v1/pods")["items"]
            if FOR in (pod["metadata"].get("labels") or {})
        ]
        for node in self._api.get("/api/v1/nodes")["items"]:
            notes = {*KEYS, OURS} & (node["metadata"].get("annotations") or {}).keys()
            leftovers += [f"{note} of node {node['metadata']['name']}" for note in sorted(notes)]
        return ", ".join(leftovers) or None


def read_groups(data: Mapping[str, str]) -> list[Group]:
    """Return the groups in a ConfigMap: shape, min and max each. Raises SettingsError."""
    return [_group(name, text) for name, text in sorted(data.items())]


def _group(name: str, text: str) -> Group:
    shape, *options = text.split(",")
    match = SHAPE.fullmatch(shape)
    bounds = {"min": 0, "max": 10}
    good = match is not None and match[3] != "MiB" and int(match[1]) <= _MOST_DEVICES
    for word in options:
        key, _, value = word.partition("=")
        good = good and key in bounds and value.isascii() and value.isdigit()
        bounds[key] = int(value) if good else 0
    if match is None or not good:
        raise SettingsError(f"{GROUPS}: {name}: {text!r} is not as 4x24GiB or 4x24GiB,min=0,max=10")
    plan = NodePlan(name=name, gpus=int(match[1]), gpu_memory=int(match[2]))
    template = node_document(plan, 0)
    # Each node has its own address.
    del template["status"]["addresses"]
    return Group(name, template, min_size=bounds["min"], max_size=bounds["max"])
