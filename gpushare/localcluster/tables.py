"""Tables: objects as the rows that `kubectl get` prints.

Pure. A kind without columns of its own shows its name and age.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime

from gpushare.localcluster.objects import Object
from gpushare.localcluster.resources import Resource
from gpushare.localcluster.store import Record


def table(resource: Resource, records: Sequence[Record], version: int, now: datetime) -> Object:
    """Return the Table of some objects; ages are counted to `now`."""
    return {"resource": resource.kind, "rows": len(records), "version": version, "now": str(now)}


def row_encoder(resource: Resource, clock: Callable[[], datetime]) -> Callable[[Record], bytes]:
    """Return how a watch writes one object as a Table of one row."""
    return lambda record: json.dumps(table(resource, [record], record.version, clock())).encode()
