"""The devices of containers, compared with the Binding of their pod.

Knows annotations, the runtime's record and the variables of a container, from docs/protocol.md;
nothing of the code that writes them.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.contract.apiserver.client import Json
from tests.e2e.node import Created
from tests.e2e.objects import MEM

_MOUNTS = "/var/run/nvidia-container-devices/"
_NOTE = "ALIYUN_COM_GPU_MEM"
_MAP, _UUIDS = "scheduler.framework.gpushare.allocation", "gpushare.io/device-uuids"


@dataclass
class Given:
    """Containers that ask for GPU memory: how many have the Binding's devices, which do not, why.

    wrong: those that were given something else. nothing: those that were given no device, so that
    their start fails on a real runtime.
    """

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    nothing: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.right + len(self.wrong) + len(self.nothing)


def given(pods: Iterable[Json], created: Iterable[Created]) -> Given:
    """The devices of these pods' containers. Containers of other pods do not count."""
    known_items = {pod["metadata"]["uid"]: pod for pod in pods}
    given_object = Given()
    for item in created:
        if item.uid not in known_items:
            continue
        pod = known_items[item.uid]
        limit_result = limit(container_of(pod, item.container))
        shown_to_result = shown_to(item)
        if not limit_result and not shown_to_result:
            continue
        if not shown_to_result or shown_to_result.startswith("no-gpu-has-"):
            given_object.nothing.append(f"{item.pod}/{item.container}: {shown_to_result}")
        elif fault_result := fault(pod, item, shown_to_result, limit_result):
            given_object.wrong.append(f"{item.pod}/{item.container}: {fault_result}")
        else:
            given_object.right += 1
    return given_object


def shown_to(created: Created) -> str:
    """The devices that the container is shown, by CDI, mounts or the variable; "" for none."""
    annotated = [
        name
        for key, names in created.annotations.items()
        if key.startswith("cdi.k8s.io/")
        for name in names.split(",")
    ]
    by_cdi = [*created.cdi_devices, *annotated]
    variable = created.env.get("NVIDIA_VISIBLE_DEVICES", "")
    if by_cdi:
        assert variable == "void", created
        assert all(name.startswith("nvidia.com/gpu=") for name in by_cdi), created
        return ",".join(name.partition("=")[2] for name in by_cdi)
    by_mount = [path for path in created.mounts if path.startswith(_MOUNTS)]
    assert all(created.mounts[path] == "/dev/null" for path in by_mount), created
    names = ",".join(path.removeprefix(_MOUNTS) for path in by_mount)
    assert not by_mount or sorted(names.split(",")) == sorted(variable.split(",")), created
    return names or variable


def fault(pod: Json, created: Created, displayed: str, request: int) -> str:
    """The fault of the devices that the container sees; "" if there is none."""
    if not request:
        return f"has {displayed}, asks for none"
    written_for_result, uuids = written_for(pod, created.container), uuids_of(pod)
    observed = sorted(uuids.get(part, part) for part in displayed.split(","))
    if observed != sorted(map(str, written_for_result)):
        return f"has {displayed}, written is {written_for_result} with {uuids}"
    units = created.env.get(f"{_NOTE}_CONTAINER")
    return "" if units == str(request) else f"has {units} units, asks for {request}"


def written_for(pod: Json, container: str) -> list[int]:
    """The devices that the pod's annotations give to the container.

    The devices of a regular container are in the map; any other one has all devices of its pod.
    """
    notes = pod["metadata"]["annotations"]
    names = [container["name"] for container in pod["spec"]["containers"]]
    if container in names:
        granted = json.loads(notes[_MAP])[str(names.index(container))]
        return sorted(int(index) for index, units in granted.items() if units)
    return sorted(map(int, notes[f"{_NOTE}_IDX"].split(",")))


def uuids_of(pod: Json) -> dict[str, str]:
    """The index of each uuid that the annotations name."""
    notes = pod["metadata"]["annotations"]
    uuids = notes.get(_UUIDS, "")
    indices = notes[f"{_NOTE}_IDX"].split(",")
    return dict(zip(uuids.split(","), indices, strict=True)) if uuids else {}


def container_of(pod: Json, name: str) -> Json:
    spec = pod["spec"]
    (result,) = (
        item
        for item in [*spec.get("initContainers", ()), *spec["containers"]]
        if item["name"] == name
    )
    return dict(result)


def limit(container: Json) -> int:
    return int(container["resources"].get("limits", {}).get(MEM, 0))
