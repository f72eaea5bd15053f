"""Which containers have a share of compute that nothing holds them to, by the kubelet's record.

Whether a limit that was told holds is not looked at: NVML does not tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpushare.core.model import ALL_CORES
from gpushare.device_plugin.container import compute_limit, isolation_of
from gpushare.device_plugin.identity import CheckpointEntry
from gpushare.device_plugin.kubelet import parse_answer
from gpushare.device_plugin.node_pod import GpuContainer, NodePod
from gpushare.device_plugin.pods import Pods


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A pod's containers that ask for compute and were told no limit of it."""

    pod: NodePod
    containers: tuple[GpuContainer, ...]
    isolation: str
    """What limits the memory of the first of them."""


@dataclass(slots=True, eq=False)
class ComputeCheck:
    """Looks at the record."""

    pods: Pods
    tell: Callable[[Unenforced], None]
    """Called once for each pod."""
    unenforced_containers: int = 0
    """Containers on record that ask for compute and were told no limit of it."""
    _reported: set[str] = field(default_factory=set)

    def look(self, record: Sequence[CheckpointEntry]) -> None:
        """Count them, and tell of pods that were not told of before. Raises MessageError."""
        unenforced: dict[str, list[tuple[GpuContainer, str]]] = {}
        pods = {pod.ref.uid: pod for pod in self.pods.now()[0].values() if not pod.ended}
        for entry in record:
            pod = pods.get(entry.uid)
            container = pod.gpu_container(entry.container) if pod else None
            # Who asks for all compute of its devices needs no limit.
            if container is None or not 0 < container.cores < ALL_CORES * len(container.shares):
                continue
            answer = parse_answer(entry.response)
            if not compute_limit(answer):
                unenforced.setdefault(entry.uid, []).append((container, isolation_of(answer)))
        self.unenforced_containers = sum(map(len, unenforced.values()))
        for uid in sorted(unenforced.keys() - self._reported):
            containers = tuple(container for container, _ in unenforced[uid])
            self.tell(Unenforced(pods[uid], containers, unenforced[uid][0][1]))
        self._reported = set(unenforced)
