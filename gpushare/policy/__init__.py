"""The public interface for authors of placement policies.

Only the names in `__all__` are promised; of a Snapshot only the fields in `SNAPSHOT_FIELDS`, of a
Request only those in `REQUEST_FIELDS`. CHANGELOG.md announces each change of these names.
docs/policies.md explains the interface with an example; `gpushare.policy.testing` checks a policy.
"""

from gpushare.core.model import MAX_UNITS, Request
from gpushare.core.policy import Policy
from gpushare.core.snapshot import Bools, Floats, Ints, Rows, Snapshot, idle_devices
from gpushare.core.workload import PodClass, Workload

__all__ = [
    "MAX_UNITS",
    "REQUEST_FIELDS",
    "SNAPSHOT_FIELDS",
    "Bools",
    "Floats",
    "Ints",
    "PodClass",
    "Policy",
    "Request",
    "Rows",
    "Snapshot",
    "Workload",
    "idle_devices",
]

SNAPSHOT_FIELDS = (
    "capacity",
    "cores_free",
    "cores_used",
    "cpu_capacity",
    "cpu_free",
    "cpu_only",
    "free",
    "gpu_pods",
    "group",
    "group_rows",
    "memory_capacity",
    "memory_free",
    "model",
    "models",
    "names",
    "open",
    "percents_free",
    "percents_used",
    "pods",
    "used",
)
"""The fields of a Snapshot that a policy may read."""

REQUEST_FIELDS = ("units", "devices", "cpu", "memory", "models", "total", "cores", "percents")
"""The fields of a Request that a policy may read."""
