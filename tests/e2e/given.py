"""The devices of containers, compared with the Binding of the pod.

Knows annotations, the runtime's record and the variables of a container, from docs/protocol.md;
knows nothing of our code.
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
    """Containers with GPU memory: the number with the right devices, and the others with reasons.

    wrong: containers with other devices. nothing: containers without a device, which a real runtime
    would not start.
    """

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    nothing: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.right + len(self.wrong) + len(self.nothing)


def given(pods: Iterable[Json], created: Iterable[Created]) -> Given:
    """The devices of the containers of these pods; other pods do not count."""
    known_names = {pod["metadata"]["uid"]: pod for pod in pods}
    result = Given()
    for item in created:
        if item.uid not in known_names:
            continue
        pod = known_names[item.uid]
        request = limit(container_of(pod, item.container))
        shown_text = shown_to(item)
        if not request and not shown_text:
            continue
        if not shown_text or shown_text.startswith("no-gpu-has-"):
            result.nothing.append(f"{item.pod}/{item.container}: {shown_text}")
        elif kind := fault(pod, item, shown_text, request):
            result.wrong.append(f"{item.pod}/{item.container}: {kind}")
        else:
            result.right += 1
    return result


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


def fault(pod: Json, created: Created, shown_text: str, request: int) -> str:
    """The error in the devices of the container, or ""."""
    if not request:
        return f"has {shown_text}, asks for none"
    text, uuids = written_for(pod, created.container), uuids_of(pod)
    collected = sorted(uuids.get(item, item) for item in shown_text.split(","))
    if collected != sorted(map(str, text)):
        return f"has {shown_text}, written is {text} with {uuids}"
    units = created.env.get(f"{_NOTE}_CONTAINER")
    return "" if units == str(request) else f"has {units} units, asks for {request}"


def written_for(pod: Json, container: str) -> list[int]:
    """The devices of the container by the pod's annotations.

    The map has those of regular containers; other containers have all devices of the pod.
    """
    notes = pod["metadata"]["annotations"]
    names = [item["name"] for item in pod["spec"]["containers"]]
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
