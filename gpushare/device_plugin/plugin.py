"""The device plug-in of one node: wiring, start and stop of the parts.

A process has one; the local cluster has one for each node. Tested in
`tests/integration/test_device_plugin.py`.
"""

import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpushare.daemon.events import NullRecorder, Recorder
from gpushare.daemon.health import HealthServer
from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.allocator import Allocator, Served
from gpushare.device_plugin.cards import NVIDIA_IDS, ORIGINAL_IDS, NodeCards, form_of, unit_mib
from gpushare.device_plugin.container import Contract, answer
from gpushare.device_plugin.devices import FileSource, NvmlSource
from gpushare.device_plugin.event_messages import PluginEvents
from gpushare.device_plugin.hami_folders import ContainerFolders
from gpushare.device_plugin.handover import Handover, Setup
from gpushare.device_plugin.health import Health
from gpushare.device_plugin.identity import CheckpointEntry
from gpushare.device_plugin.kubelet import PodResources, PodsApi, read_checkpoint
from gpushare.device_plugin.marker import Marker, RejectedPods
from gpushare.device_plugin.memory import Cgroups, ComputeCheck, Memory, UsageFigures
from gpushare.device_plugin.metrics import PluginMetrics
from gpushare.device_plugin.node import NodeWriter
from gpushare.device_plugin.options import PluginOptions
from gpushare.device_plugin.pods import Pods
from gpushare.device_plugin.registration import Registration, own_socket, refuse_others
from gpushare.device_plugin.server import PluginServer
from gpushare.device_plugin.start_check import StartCheck
from gpushare.errors import GpuShareError, RequestRefused, SettingsError
from gpushare.kube.client import connect
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.logline import Line
from gpushare.wire.device_list import DeviceList
from gpushare.wire.objects import STARTED_PODS

log = logging.getLogger("gpushare.device_plugin")

NAME = "gpushare-device-plugin"

_FIRST_SECONDS = 5.0
"""Seconds to wait for the first write of the Node; then the plug-in registers anyway."""
_LIMITING_DRIVER = 615
_UNIT_IDS = {"nvidia": NVIDIA_IDS, "original": ORIGINAL_IDS}
_CGROUP_V2 = "sys/fs/cgroup/cgroup.controllers"


class DevicePlugin:
    """All parts, wired up; `start` starts the threads.

    health_address: where probes and metrics are answered; "": at all addresses of the node.
    """

    def __init__(self, options: PluginOptions, health_address: str = "") -> None:
        """Wire everything up. Raises SettingsError."""
        names, node = options.names, options.node_name
        self._options, self.node_name = options, node
        nvml: NvmlSource | None = None
        if not options.devices_file:
            nvml = NvmlSource(
                topology=options.numa,
                root=options.host_root,
                memory_mib=options.memory_mib,
                needs_fabric=options.needs_fabric,
            )
        isolation = _isolation(options, nvml)
        self._client = connect(
            options.kubeconfig or None, options.context or None, pool_size=8, user_agent=NAME
        )
        self.health = Health(
            nvml or FileSource(options.devices_file),
            options.memory_unit,
            options.reserve_mib,
            recover=options.recover_seconds,
            on_change=self._cards_changed,
        )
        cards = self.health.cards
        resources = PodResources(options.pod_resources_socket, names.resource)
        pods_api = PodsApi(options.pods_api_socket) if options.pods_api_socket else None
        self._channels = (resources, *([pods_api] if pods_api else ()))
        self._pods = Pods(self._client, names, node, pods_api.pods if pods_api else tuple)
        selector = ("fieldSelector", f"spec.nodeName={node}")
        watch = ListWatch("/api/v1/pods", STARTED_PODS, (selector,))
        self._reflector = Reflector(self._client, watch, self._pods)
        recorder = Recorder(self._client, socket.gethostname(), controller=NAME)
        self._event_messages = PluginEvents(recorder if options.events else NullRecorder(), node)
        self._allocator = Allocator(
            *(self._pods, resources.pod_devices, cards),
            record=self._entries,
            other_card_ids=self._report_other_card_ids,
        )
        check = StartCheck(
            *(self._pods, self._entries, resources.pod_devices, cards),
            certain=self._allocator.certain,
        )
        self._node = NodeWriter(
            *(self._client, node, names, cards),
            advertise_cores=options.advertise_cores,
            look=self._look_at_node,
        )
        self._compute = ComputeCheck(self._pods, self._event_messages.compute)
        self._folders = ContainerFolders(options.hami_core_dir, self._pods)
        clear = options.delete_unexpected_admission_errors
        self._marker = Marker(
            *(self._client, self._pods, self._allocator, check),
            tell=self._event_messages.wrong_device,
            clear=RejectedPods(self._client, names.resource).clear if clear else lambda pods: None,
            look_too=self._look_at_record,
        )
        memory = None
        if nvml:  # a devices file has no figures
            memory = Memory(
                *(nvml, Cgroups(options.host_root), self._pods, self._entries, cards),
                tell=self._event_messages.memory,
            )
        self._metrics = PluginMetrics(
            cards,
            lambda: self._marker.wrong_containers,
            lambda: self._pods.asking,
            memory.seen if memory else UsageFigures,
            self.health.unwatched,
            compute_unenforced=lambda: self._compute.unenforced_containers,
        )
        self._contract = Contract(
            names,
            unit_mib(options.memory_unit),
            isolation,
            cdi_kind=options.cdi_kind,
            hami_core=options.hami_core_dir,
            mps_pipe=options.mps_pipe_dir,
            mps_shm=options.mps_shm_dir,
            driver_guarantee=options.driver_guarantee,
        )
        setup = Setup(
            options.device_list_strategy,
            options.cdi_kind,
            by_nvml=nvml is not None,
            needs_limits=isolation == "driver",
        )
        self._handover = Handover(setup, options.host_root, passes_nodes=options.pass_device_specs)
        self._look_at_node()
        folder = options.device_plugin_dir
        self._server = PluginServer(
            *(folder / own_socket(), self.health, self._allocator, check.check),
            answer=self._answer,
            observe=self._metrics.observe,
        )
        self._registration = Registration(
            folder, names.resource, self._server, self._before_registering
        )
        self._waited = False
        refuse_others(folder)
        everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 -- for the kubelet
        host, port = health_address or everywhere, options.health_port
        try:
            http = HealthServer(host, port, self._live, self._ready, self._metrics.text)
        except OSError as error:
            raise SettingsError(f"health-port: {port}: {error}") from error
        self._parts = (
            *(http, self._reflector, self._node, recorder, self.health, self._marker),
            *([memory] if memory else ()),
            self._registration,
        )
        """In the order of start."""
        log.info(Line("serving", isolation=isolation, unit=options.memory_unit))

    def start(self) -> None:
        """Start all threads."""
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        """Stop all threads; the kubelet counts the devices as unhealthy, containers run on."""
        for part in reversed(self._parts):
            part.stop()
        for channel in self._channels:
            channel.close()
        self._client.close()

    def _before_registering(self) -> None:
        """Read the kubelet's checkpoint; the first time, wait for the write of the Node before.

        Without the API server, pods that the kubelet's own APIs show are served all the same.
        """
        if not self._waited:
            self._waited = True
            if not self._node.written.wait(_FIRST_SECONDS):
                log.warning("the API server does not answer; registering without it")
        try:
            entries = self._entries()
            form = form_of(device for entry in entries for device in entry.ids)
        except GpuShareError as error:
            log.warning(Line("what the kubelet has given out is not known", error=error))
            entries, form = (), self._server.ids
        self._allocator.reset(entries)
        self._server.ids = _UNIT_IDS.get(self._options.unit_ids) or form or NVIDIA_IDS

    def _entries(self) -> Sequence[CheckpointEntry]:
        return read_checkpoint(self._options.device_plugin_dir, self._options.names.resource)

    def _look_at_record(self, record: Sequence[CheckpointEntry]) -> None:
        """Look at what depends on the kubelet's record. Raises MessageError."""
        if self._contract.isolation == "hami-core":
            self._folders.look(record)
        self._compute.look(record)

    def _answer(self, served: Served) -> pb.ContainerAllocateResponse:
        """Return the answer for the container. Raises RequestRefused."""
        contract = replace(
            self._contract,
            cgpu_disabled=self._node.cgpu_disabled,
            id_strategy=self._id_strategy(),
            list_strategy=self._handover.choice.strategy,
            control_nodes=self._handover.control_nodes,
        )
        owner = served.owners[0] if len(served.owners) == 1 else None
        uid, container = (owner.pod.ref.uid, owner.container.name) if owner else ("", "")
        if contract.isolation == "hami-core":
            if owner is None:
                raise RequestRefused("hami-core needs to know the pod, and several may be meant")
            self._folders.make(uid, container)
        for candidate in served.owners:
            ref, name = candidate.pod.ref, candidate.container.name
            log.info(Line("served", pod=ref, container=name, given=served.grant))
        self._marker.wake()
        return answer(served.grant, contract, uid, container)

    def _report_other_card_ids(self, served: Served) -> None:
        self._metrics.other_card_ids.inc()
        for owner in served.owners:
            log.warning(Line("ids of other cards", container=owner, given=served.grant))
            self._event_messages.other_card_ids(owner, served.grant)

    def _id_strategy(self) -> str:
        """Return how devices are named to containers: where there are MIG instances, by uuid."""
        has_instances = any(card.is_instance for card in self.health.cards().all)
        return "uuid" if has_instances else self._options.device_id_strategy

    def _look_at_node(self, runtime: str = "", kubelet: str = "") -> DeviceList:
        """Return the strategy of handing over devices. runtime, kubelet: of the Node's status."""
        by_uuid = self._id_strategy() == "uuid"
        cards = [card for card in self.health.cards().all if card.healthy]
        devices = [card.uuid if by_uuid else str(card.index) for card in cards]
        return self._handover.look(devices, runtime, kubelet)

    def _cards_changed(self, before: NodeCards, after: NodeCards) -> None:
        self._node.wake()
        self._event_messages.cards_changed(before, after, self._pods.now()[0].values())

    def _live(self) -> Mapping[str, str]:
        stuck = "" if self._registration.alive() else "its thread has ended"
        return {"registration": stuck, "devices": self.health.live()}

    def _ready(self) -> Mapping[str, str]:
        synced = "" if self._reflector.status.synced else "not listed yet"
        return {
            "registration": self._registration.problem(),
            "pods": synced,
            "node": self._node.problem(),
            "devices": self.health.ready(),
        }


def _isolation(options: PluginOptions, nvml: NvmlSource | None) -> str:
    """Return the isolation to use, never auto. Raises SettingsError if it cannot work here."""
    obstacle = ""
    if nvml:
        major = nvml.driver_major()
        if major < _LIMITING_DRIVER:
            obstacle = f"the driver's version is {major}, and limits come with {_LIMITING_DRIVER}"
        elif not (options.host_root / _CGROUP_V2).exists():
            obstacle = "the node has no cgroup v2"
    if options.isolation == "auto":
        return "driver" if nvml and not obstacle else "none"
    if options.isolation == "driver" and obstacle:
        raise SettingsError(f"isolation: driver cannot limit memory here: {obstacle}")
    library = Path(options.hami_core_dir) / "libvgpu.so"
    if options.isolation == "hami-core" and not library.exists():
        raise SettingsError(f"isolation: hami-core needs {library}, which is not there")
    return options.isolation
