"""Events of core/v1, as kube-scheduler and the controllers write them."""

import hashlib
import json

from gpushare.errors import ApiConflict
from gpushare_localcluster.api.records import timestamp
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, Json


def write_event(
    api: ApiClient, about: Json, reason: str, message: str, *, kind: str, component: str
) -> None:
    """Write an event about an object, or count it once more. Raises ApiError."""
    meta, now = about["metadata"], timestamp()
    path = f"/api/v1/namespaces/{meta.get('namespace') or 'default'}/events"
    digest = hashlib.sha256(json.dumps([meta["uid"], reason, message]).encode()).hexdigest()
    name = f"{meta['name']}.{digest[:16]}"
    involved = {field: about[field] for field in ("kind", "apiVersion")}
    for field in ("namespace", "name", "uid", "resourceVersion"):
        if field in meta:
            involved[field] = meta[field]
    event = {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "involvedObject": involved,
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": kind,
        "eventTime": None,
        "reportingComponent": component,
        "reportingInstance": "",
    }
    try:
        api.create(path, event)
    except ApiConflict:
        again = {"count": api.get(f"{path}/{name}")["count"] + 1, "lastTimestamp": now}
        api.patch(f"{path}/{name}", again, MERGE_PATCH)
