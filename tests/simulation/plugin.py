"""gpushare's own device plug-in on a node of the simulation, asked by the local cluster's kubelet.

The plug-in's code decides: pods, turns, ids, the environment of a container
and whether it may start. The plug-in's sources may be late or absent, as a story's number says.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gpushare.device_plugin import container
from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.allocator import Allocator, Served
from gpushare.device_plugin.cards import Card, Fault, NodeCards, Problem, device_id, uuids_of
from gpushare.device_plugin.container import Contract, visible_devices
from gpushare.device_plugin.identity import CheckpointEntry, PodDevices
from gpushare.device_plugin.kubelet import parse_answer
from gpushare.device_plugin.node_pod import node_pod
from gpushare.device_plugin.pods import Pods
from gpushare.device_plugin.start_check import StartCheck
from gpushare.errors import ApiUnavailable, GpuShareError, RequestRefused
from gpushare.kube.api import Lines
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import Decoded
from gpushare.wire.objects import PODS
from gpushare_localcluster.devices.manager import HEALTHY, UNHEALTHY, ContainerGrant, DeviceManager
from gpushare_localcluster.pod_status import (
    AdmissionError,
    container_units,
    containers,
    is_plain_init,
)
from tests.simulation.chance import Chance
from tests.simulation.truth import Json, PodTruth

_MIB = 1024
_SICK = Problem(Fault.LOST, "is lost")


@dataclass(frozen=True, slots=True)
class ContainerCards:
    """The devices of one container: units by card. told: cards in the environment. ids: on the
    kubelet's record. init: an init container.
    """

    units: dict[str, int]
    told: frozenset[str]
    ids: frozenset[str]
    init: bool


@dataclass(slots=True)
class Weather:
    """The plug-in's sources. told: the watch has delivered all. api: the API server answers.
    listed: pod-resources answers. crowd: the kubelet shows others besides that wait, too.
    """

    told: bool = True
    api: bool = True
    is_listed: bool = True
    crowd: bool = False

    @staticmethod
    def of(chance: Chance) -> "Weather":
        """As the number says; 0: all is well."""
        return Weather(
            not chance.below(2),
            not chance.once_in(5),
            not chance.once_in(8),
            chance.once_in(4),
        )

    @property
    def fair(self) -> bool:
        """Whether the plug-in can know the pod."""
        return self.api and self.is_listed and not self.crowd


class OurPlugin(DeviceManager):
    """A node's kubelet and our plug-in there, without sockets between them.

    read_pod: a pod from the API server, by name. clock: the story's.
    """

    def __init__(
        self, node: str, read_pod: Callable[[str], Json], clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        super().__init__(Path(node), ALIYUN.resource)
        self.cards = NodeCards("GiB", ())
        self.weather = Weather()
        self.foreign = False
        """Whether another plug-in has given out ids here: the kubelet's free ones may be of any
        card."""
        self._node = node
        self._read = read_pod
        self._clock = clock
        self._served: dict[tuple[str, str], Served] = {}
        self._answered: Served | None = None
        self.restart_plugin()

    def restart_plugin(self) -> None:
        """Restart with nothing but the kubelet's record."""
        self._known = Pods(_PluginApi(self), ALIYUN, self._node)
        self._allocator = Allocator(
            *(self._known, self._shown_to_plugin, lambda: self.cards),
            record=self._record,
            clock=self._clock,
            max_wait=0.0,
        )
        self._allocator.reset(self._record())
        self._check = StartCheck(
            *(self._known, self._record, self._shown_to_plugin, lambda: self.cards),
            certain=self._allocator.certain,
        )

    def count(self, slots: Sequence[str], units: dict[str, int], sick: frozenset[str]) -> None:
        """Set the cards by index."""
        self.cards = NodeCards(
            "GiB",
            tuple(
                Card(uuid, index, units[uuid], problem=_SICK if uuid in sick else None)
                for index, uuid in enumerate(slots)
            ),
        )
        self.devices = {
            device_id(card.uuid, number): HEALTHY if card.healthy else UNHEALTHY
            for card in self.cards.all
            for number in range(card.unit_count)
        }

    def serve(
        self, pod: Json, other_pods: Sequence[Json], weather: Weather
    ) -> dict[str, ContainerCards]:
        """Admit the pod; return the devices of each container. Raises AdmissionError.

        other_pods: bound pods of the node that are not admitted yet.
        """
        self.weather = weather
        crowd = other_pods if weather.crowd else ()
        if weather.told:
            all_pods = [*self.pods.values(), *other_pods, pod]
            pods = [PODS.decode(json.dumps(record).encode()) for record in all_pods]
            self._known.replace([Decoded(pods, "1")], 0.0)
        self.pods |= {record["metadata"]["uid"]: record for record in crowd}
        try:
            self.add(pod)
        finally:
            for record in crowd:
                self.pods.pop(record["metadata"]["uid"])
        uid = pod["metadata"]["uid"]
        own_records = [record for record in self.grants if record.uid == uid]
        try:
            for one in own_records:
                self._check.check(one.ids)
        except RequestRefused as error:
            raise AdmissionError(f"PreStartContainer: {error}") from error
        return {one.container: self._given(pod, one) for one in own_records}

    def free(self) -> dict[str, int]:
        """Units by card that nobody holds, of cards that are there."""
        used = {device for record in self.grants for device in record.ids}
        return {
            card.uuid: sum(
                device_id(card.uuid, number) not in used for number in range(card.unit_count)
            )
            for card in self.cards.all
        }

    def complete(self, pod: Json) -> bool:
        """Whether the plug-in marks the pod: by its own account and, like the marker, by the
        record.
        """
        self._allocator.learn(self._record())
        return self._allocator.complete(node_pod(PODS.decode(json.dumps(pod).encode()), ALIYUN))

    def hold(self, pod: Json, uuids: Sequence[str]) -> None:
        """Have a pod on record that another plug-in gave these cards, and any ids."""
        uid, self.foreign = pod["metadata"]["uid"], True
        self.pods[uid] = pod
        used = {device for record in self.grants for device in record.ids}
        for record in containers(pod):
            free = [device for device in self.devices if device not in used]
            ids = frozenset(free[: container_units(record)])
            if ids:
                used |= ids
                response = pb.ContainerAllocateResponse(
                    envs={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}
                )
                self.grants.append(
                    ContainerGrant(uid, record["name"], ids, response.SerializeToString())
                )

    def allocate(self, ids: Collection[str]) -> pb.ContainerAllocateResponse:
        try:
            self._answered = self._allocator.allocate(ids)
        except GpuShareError as error:
            raise AdmissionError(f"Allocate: {error}") from error
        return container.answer(self._answered.grant, Contract(ALIYUN, _MIB), "", "")

    def write_checkpoint(self) -> None:
        """The record is the truth."""

    def _allocate(self, pod: Json, container: Json) -> None:
        self._answered = None
        super()._allocate(pod, container)
        if self._answered is not None:
            self._served[pod["metadata"]["uid"], container["name"]] = self._answered

    def _preferred(self, free: set[str], chosen: set[str], needed: int) -> list[str]:
        try:
            available = self.shuffled(free | chosen)
            return [*self._allocator.prefer(available, self.shuffled(chosen), needed)]
        except GpuShareError as error:
            raise AdmissionError(f"GetPreferredAllocation: {error}") from error

    def _given(self, pod: Json, record: ContainerGrant) -> ContainerCards:
        inits = [init["name"] for init in containers(pod) if is_plain_init(pod, init)]
        served = self._served[record.uid, record.container]
        return ContainerCards(
            {card.uuid: units for card, units in served.grant.shares},
            visible_devices(parse_answer(record.response)),
            record.ids,
            record.container in inits,
        )

    def _shown_to_plugin(self) -> PodDevices:
        """The plug-in's view of PodResources' List."""
        if not self.weather.is_listed:
            raise ApiUnavailable("pod-resources does not answer", 0)
        ids_by_container = {(record.uid, record.container): record.ids for record in self.grants}
        return {
            (pod["metadata"]["namespace"], pod["metadata"]["name"]): {
                record["name"]: ids_by_container.get((uid, record["name"]), frozenset())
                for record in containers(pod)
                if not is_plain_init(pod, record)
            }
            for uid, pod in self.shown().items()
        }

    def _record(self) -> Sequence[CheckpointEntry]:
        return [
            CheckpointEntry(record.uid, record.container, record.ids, record.response)
            for record in self.grants
        ]

    def read(self, name: str) -> Json:
        """Read a pod, as the plug-in does if the watch is late. Raises ApiUnavailable."""
        if not self.weather.api:
            raise ApiUnavailable(f"no answer for pod {name}", 0)
        return self._read(name)


def units_by_card(allocations: Collection[ContainerCards]) -> dict[str, int]:
    """The most that the containers hold of each card at a time: init containers end first."""
    max_init_units: Counter[str] = Counter()
    for allocation in allocations:
        if not allocation.init:
            max_init_units.update(allocation.units)
    for allocation in allocations:
        max_init_units |= Counter(allocation.units)
    return dict(max_init_units)


def wrongly_given(
    pod: PodTruth,
    expected: dict[str, int],
    allocations: Collection[ContainerCards],
    *,
    own_ids: bool,
) -> str:
    """The mistake in the devices of a pod's containers, "" for none. expected: units by card.

    own_ids: whether the kubelet had enough free ids of these cards.
    """
    if any(allocation.told != allocation.units.keys() for allocation in allocations):
        return "a container was told of other cards than it was given"
    if frozenset().union(*(allocation.told for allocation in allocations)) != expected.keys():
        return "not on the cards of its Binding"
    if sorted(sum(allocation.units.values()) for allocation in allocations) != sorted(
        pod.asked.calls
    ):
        return "a container has more or less than it asks for"
    if any(units > expected[card] for card, units in units_by_card(allocations).items()):
        return "more of a card than its Binding says"
    if own_ids and any(
        not uuids_of(allocation.ids) <= expected.keys() for allocation in allocations
    ):
        return "the kubelet has it on other cards"
    return ""


@dataclass(frozen=True, slots=True)
class _PluginApi:
    plugin: OurPlugin

    def request(self, method: str, path: str, **_: object) -> bytes:
        assert method == "GET"
        return json.dumps(self.plugin.read(path.rpartition("/")[2])).encode()

    def stream(self, path: str, *_: object, **__: object) -> AbstractContextManager[Lines]:
        raise AssertionError(f"its watch of {path} is made by the weather")
