"""gpushare's own device plug-in on a node of the simulation, asked by the local cluster's kubelet.

Its code decides: the pods as it reads them, whose turn it is, which ids, what the container is told
and whether it may start. What it hears by may be late or away, as a story's number says.
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
from gpushare.device_plugin.kubelet import answer_message, parse_answer
from gpushare.device_plugin.node_pod import node_pod
from gpushare.device_plugin.pods import Pods
from gpushare.device_plugin.start_check import StartCheck
from gpushare.errors import ApiUnavailable, GpuShareError, RequestRefused
from gpushare.kube.api import Lines
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import Decoded
from gpushare.wire.objects import PODS
from gpushare_localcluster.devices.admission import AdmissionError
from gpushare_localcluster.devices.manager import ContainerGrant, DeviceManager
from gpushare_localcluster.devices.sockets import HEALTHY, UNHEALTHY
from gpushare_localcluster.grants import container_units, containers, is_plain_init
from tests.simulation.chance import Chance
from tests.simulation.truth import Json, PodTruth

_MIB = 1024
_SICK = Problem(Fault.LOST, "is lost")


@dataclass(frozen=True, slots=True)
class Given:
    """What one container was given: units by card. told: the cards by what it was told. ids: on the
    kubelet's record. init: it ends before the others.
    """

    units: dict[str, int]
    told: frozenset[str]
    ids: frozenset[str]
    init: bool


@dataclass(slots=True)
class Weather:
    """What the plug-in hears by. told: its watch has shown all. api: the API server answers it.
    listed: pod-resources answers. crowd: the kubelet shows others besides that wait, too.
    """

    told: bool = True
    api: bool = True
    listed: bool = True
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
        """Whether nothing keeps it from knowing the pod."""
        return self.api and self.listed and not self.crowd


class OurPlugin(DeviceManager):
    """A node's kubelet and our plug-in there, with no sockets between them.

    read: a pod as the API server has it, by its name. clock: the story's.
    """

    def __init__(
        self, node: str, read: Callable[[str], Json], clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        super().__init__(Path(node), ALIYUN.resource)
        self.cards = NodeCards("GiB", ())
        self.weather = Weather()
        self.foreign = False
        """Whether another plug-in has given out ids here: the kubelet's free ones may be of any
        card."""
        self._node = node
        self._read = read
        self._clock = clock
        self._served: dict[tuple[str, str], Served] = {}
        self._answered: Served | None = None
        self.restart_plugin()

    def restart_plugin(self) -> None:
        """Begin anew, with nothing but what the kubelet has on record."""
        self._known = Pods(_Api(self), ALIYUN, self._node)
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
        """Take the cards by index, as they are now."""
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

    def serve(self, pod: Json, others: Sequence[Json], weather: Weather) -> dict[str, Given]:
        """Admit the pod; what each of its containers was given. Raises AdmissionError.

        others: bound pods of the node that are not admitted yet.
        """
        self.weather = weather
        crowd = others if weather.crowd else ()
        if weather.told:
            every = [*self.pods.values(), *others, pod]
            pods = [PODS.decode(json.dumps(each).encode()) for each in every]
            self._known.replace([Decoded(pods, "1")], 0.0)
        self.pods |= {each["metadata"]["uid"]: each for each in crowd}
        try:
            self.add(pod)
        finally:
            for each in crowd:
                self.pods.pop(each["metadata"]["uid"])
        uid = pod["metadata"]["uid"]
        held = [each for each in self.grants if each.uid == uid]
        try:
            for one in held:
                self._check.check(one.ids)
        except RequestRefused as error:
            raise AdmissionError(f"PreStartContainer: {error}") from error
        return {one.container: self._given(pod, one) for one in held}

    def free(self) -> dict[str, int]:
        """Units by card that nobody holds, of cards that are there."""
        used = {device for each in self.grants for device in each.ids}
        return {
            card.uuid: sum(
                device_id(card.uuid, number) not in used for number in range(card.unit_count)
            )
            for card in self.cards.all
        }

    def complete(self, pod: Json) -> bool:
        """Whether it marks the pod: by its own account and, as its marker does, by the record."""
        self._allocator.learn(self._record())
        return self._allocator.complete(node_pod(PODS.decode(json.dumps(pod).encode()), ALIYUN))

    def hold(self, pod: Json, uuids: Sequence[str]) -> None:
        """Have a pod on record that another plug-in gave these cards, and any ids."""
        uid, self.foreign = pod["metadata"]["uid"], True
        self.pods[uid] = pod
        used = {device for each in self.grants for device in each.ids}
        for each in containers(pod):
            free = [device for device in self.devices if device not in used]
            ids = frozenset(free[: container_units(each)])
            if ids:
                used |= ids
                told = pb.ContainerAllocateResponse(
                    envs={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}
                )
                self.grants.append(ContainerGrant(uid, each["name"], ids, told.SerializeToString()))

    def allocate(self, ids: Collection[str]) -> pb.ContainerAllocateResponse:
        try:
            self._answered = self._allocator.allocate(ids)
        except GpuShareError as error:
            raise AdmissionError(f"Allocate: {error}") from error
        told = container.answer(self._answered.grant, Contract(ALIYUN, _MIB), "", "")
        return answer_message(told)

    def write_checkpoint(self) -> None:
        """What is held is the record."""

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

    def _given(self, pod: Json, held: ContainerGrant) -> Given:
        inits = [each["name"] for each in containers(pod) if is_plain_init(pod, each)]
        served = self._served[held.uid, held.container]
        return Given(
            {card.uuid: units for card, units in served.grant.shares},
            visible_devices(parse_answer(held.response)),
            held.ids,
            held.container in inits,
        )

    def _shown_to_plugin(self) -> PodDevices:
        """What PodResources makes of pod-resources' List."""
        if not self.weather.listed:
            raise ApiUnavailable("pod-resources does not answer", 0)
        held = {(each.uid, each.container): each.ids for each in self.grants}
        return {
            (pod["metadata"]["namespace"], pod["metadata"]["name"]): {
                each["name"]: held.get((uid, each["name"]), frozenset())
                for each in containers(pod)
                if not is_plain_init(pod, each)
            }
            for uid, pod in self.shown().items()
        }

    def _record(self) -> Sequence[CheckpointEntry]:
        return [
            CheckpointEntry(each.uid, each.container, each.ids, each.response)
            for each in self.grants
        ]

    def read(self, name: str) -> Json:
        """Read a pod, as the plug-in does where its watch is late. Raises ApiUnavailable."""
        if not self.weather.api:
            raise ApiUnavailable(f"no answer for pod {name}", 0)
        return self._read(name)


def units_by_card(given: Collection[Given]) -> dict[str, int]:
    """The most that the containers hold of each card at a time: init containers end first."""
    most: Counter[str] = Counter()
    for each in given:
        if not each.init:
            most.update(each.units)
    for each in given:
        most |= Counter(each.units)
    return dict(most)


def wrongly_given(
    pod: PodTruth, wanted: dict[str, int], given: Collection[Given], *, own_ids: bool
) -> str:
    """What is wrong with what a pod's containers were given, "" for nothing. wanted: units by card.

    own_ids: whether the kubelet had enough free ids of these cards.
    """
    if any(each.told != each.units.keys() for each in given):
        return "a container was told of other cards than it was given"
    if frozenset().union(*(each.told for each in given)) != wanted.keys():
        return "not on the cards of its Binding"
    if sorted(sum(each.units.values()) for each in given) != sorted(pod.asked.calls):
        return "a container has more or less than it asks for"
    if any(units > wanted[card] for card, units in units_by_card(given).items()):
        return "more of a card than its Binding says"
    if own_ids and any(not uuids_of(each.ids) <= wanted.keys() for each in given):
        return "the kubelet has it on other cards"
    return ""


@dataclass(frozen=True, slots=True)
class _Api:
    plugin: OurPlugin

    def request(self, method: str, path: str, **_: object) -> bytes:
        assert method == "GET"
        return json.dumps(self.plugin.read(path.rpartition("/")[2])).encode()

    def stream(self, path: str, *_: object, **__: object) -> AbstractContextManager[Lines]:
        raise AssertionError(f"its watch of {path} is made by the weather")
