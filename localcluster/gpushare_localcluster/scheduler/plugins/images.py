"""ImageLocality: prefers nodes that have the pod's images already.

An image counts by size, weighted by the share of nodes that have the image, so that not all pods go
to a single node.
"""

from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.framework import MAX_NODE_SCORE, Code, Status
from gpushare_localcluster.scheduler.framework import SUCCESS as _SUCCESS
from gpushare_localcluster.scheduler.handle import PlainPlugin
from gpushare_localcluster.scheduler.objects import PodView

_MIB = 1024 * 1024
_LEAST = 23 * _MIB
_MOST_OF_A_CONTAINER = 1000 * _MIB
_KEY = "PreScoreImageLocality"


class ImageLocality(PlainPlugin):
    """Scores by the sizes of the images on a node."""

    name = "ImageLocality"

    def pre_score(self, state: CycleState, pod: PodView, nodes: list[NodeInfo]) -> Status:
        """Count the nodes with each of the pod's images; return Skip if no node has any.
        kube-scheduler counts in its cache.

        If no node has an image, all nodes score 0.
        """
        everywhere = self._handle.snapshot.nodes
        images = [_normalized(name) for name in pod.images]
        shares = {
            name: sum(name in node.node.images for node in everywhere) / max(len(everywhere), 1)
            for name in images
        }
        if not any(shares.values()):
            return Status(Code.SKIP)
        state.write(_KEY, _Wanted(images, shares))
        return _SUCCESS

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return 0 for up to 23 MiB of images, 100 for 1000 MiB per container."""
        pod_images = state.read(_KEY, _Wanted)
        size = sum(
            int(node.node.images.get(name, 0) * pod_images.shares[name])
            for name in pod_images.images
        )
        max_size = _MOST_OF_A_CONTAINER * len(pod_images.images)
        size = min(max(size, _LEAST), max_size)
        return MAX_NODE_SCORE * (size - _LEAST) // (max_size - _LEAST)


class _Wanted:
    """The pod's images, and the share of nodes that have each image."""

    def __init__(self, images: list[str], shares: dict[str, float]) -> None:
        self.images = images
        self.shares = shares


def _normalized(name: str) -> str:
    """Return an image's name with the tag, by default `latest`."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"
