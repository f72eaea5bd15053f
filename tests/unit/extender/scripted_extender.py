"""A service over true books and a true binder, with the API server's answers in a script."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpushare.daemon.events import Details
from gpushare.extender.managed_resources import ExtenderScope
from gpushare.extender.service import Service
from gpushare.extender.shadow.shadow import Shadow
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.filter import FilterOptions
from gpushare.extender.verbs.recipients import Recipients
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.events import ObjectReference
from tests.support.scripted_api import ScriptedApi
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import NPU, managed_resources

EVERYBODY = ExtenderScope()
FREE = {"big": 16, "small": 8, "tiny": 2}


@dataclass
class Heard:
    """Keeps the arguments of events: (kind and name, reason, note)."""

    events: list[tuple[str, str, str]] = field(default_factory=list)

    def record(
        self,
        about: ObjectReference,
        reason: str,
        action: str,
        note: str,
        *,
        warning: bool = False,
        details: Details | None = None,
    ) -> None:
        assert action
        note += f"; {details()}" if details else ""
        normal = ("GPUShareAllocated", "GPUShareDeviceHealthy", "GPUShareNodeAsked")
        assert warning == (reason not in normal)
        self.events.append((f"{about.kind} {about.name}", reason, note))


class ScriptedExtender:
    """A service over three nodes with two devices each, and the told calls."""

    def __init__(
        self,
        best_only: bool = False,
        max_binds: int = 8,
        served: ExtenderScope = EVERYBODY,
        shadow: str = "",
    ) -> None:
        self.resources = replace(managed_resources(ALIYUN, NPU), scope=served)
        self.api = ScriptedApi()
        self.why_not = ""
        self.told: list[tuple[str, str]] = []
        self.rejected: Counter[str] = Counter()
        self.heard = Heard()
        self.hour = LastHour()
        self.ledger = self.resources.resources[0].ledger
        for name, units in FREE.items():
            self.ledger.node_changed(make_node(name, units, units))
        self.resources.resources[1].ledger.node_changed(make_node("npu", 4))
        self.shadow = Shadow(self.resources, shadow) if shadow else None
        binder = Binder(self.api, self.resources, lambda: float("inf"), self.api.clock)
        self.service = Service(
            self.resources,
            binder,
            not_ready=lambda: self.why_not,
            bind_slots=BindSlots(max_binds),
            filter_options=FilterOptions(best_only=best_only),
            recipients=Recipients(
                observe=self.observe,
                rejected=self.rejected.update,
                event_messages=EventMessages(self.heard, self.resources, "GiB"),
                last_hour=self.hour,
                shadow=self.shadow.asked if self.shadow is not None else None,
            ),
            clock=self.api.clock,
        )

    def observe(self, verb: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.told.append((verb, outcome))

    def filter(self, pod: dict[str, Any], names: Sequence[str] = tuple(FREE)) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.service.filter(request(pod, names)))
        return answer

    def prioritize(self, pod: dict[str, Any], names: Sequence[str]) -> dict[str, int]:
        """The score of each node, as kube-scheduler reads the answer."""
        answer = json.loads(self.service.prioritize(request(pod, names)))
        return dict.fromkeys(names, 0) | {item["Host"]: item["Score"] for item in answer}

    def bind(self, pod: dict[str, Any], node: str) -> str:
        error: str = json.loads(self.service.bind(bind_request(pod, node)))["Error"]
        return error


def request(pod: dict[str, Any], names: Sequence[str]) -> bytes:
    return json.dumps({"Pod": pod, "NodeNames": list(names)}).encode()


def bind_request(pod: dict[str, Any], node: str) -> bytes:
    metadata = pod["metadata"]
    return json.dumps(
        {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
    ).encode()
