"""Tables: objects as the rows that `kubectl get` prints.

Pure. Knows the form of `meta.k8s.io/v1` Table; `columns.py` has the cells.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from gpushare_localcluster.api.cells import Column
from gpushare_localcluster.api.columns import columns
from gpushare_localcluster.api.objects import Object, metadata, to_json
from gpushare_localcluster.api.records import Record
from gpushare_localcluster.api.resources import Resource


def table(
    resource: Resource,
    records: Sequence[Record],
    version: int,
    now: datetime,
    *,
    include: str = "",
) -> Object:
    """Return the Table of some objects; `now` is for ages.

    `include` is the parameter `includeObject`: rows carry metadata, or with "Object" the whole
    object.
    """
    shown_columns = columns(resource.table)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version)},
        "columnDefinitions": [_definition(column) for column in shown_columns],
        "rows": [_row(record.body, shown_columns, now, include) for record in records],
    }


def row_encoder(
    resource: Resource, clock: Callable[[], datetime], include: str
) -> Callable[[Record], bytes]:
    """Return the function that encodes an object for a watch, as a Table of one row."""

    def encode(record: Record) -> bytes:
        one = table(resource, [record], record.version, clock(), include=include)
        return to_json(one)

    return encode


def _definition(column: Column) -> Object:
    return {
        "name": column.title,
        "type": column.type,
        "format": column.format,
        "description": "",
        "priority": int(column.wide),
    }


def _row(body: Object, shown_columns: Sequence[Column], now: datetime, include: str) -> Object:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    whole = body if include == "Object" else {**partial, "metadata": metadata(body)}
    return {"cells": [column.cell(body, now) for column in shown_columns], "object": whole}
