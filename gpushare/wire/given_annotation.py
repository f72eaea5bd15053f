"""The annotation of a device plug-in about a pod that has cards of no Binding.

Pure. JSON, units by uuid: {"GPU-b": 4}. Written when the pod runs already, and never removed while
the pod exists, because a container keeps the devices until the container ends.
"""

import json
from collections.abc import Mapping
from typing import Any

from gpushare.core.model import Given
from gpushare.wire.annotations import MOST_GIVEN, Names, is_uuid

_LONGEST = 64 * 1024


def read_given(annotations: Mapping[str, str], total: int, names: Names) -> Given:
    """Return the units by uuid in the annotation; () without one, or if the text makes no sense.

    total: units that the pod asks for, the upper bound on any card.
    """
    text = annotations.get(names.given, "")
    if not text or len(text) > _LONGEST:
        return ()
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(document, dict) or len(document) > MOST_GIVEN:
        return ()
    for uuid, units in document.items():
        if not is_uuid(uuid) or type(units) is not int or units <= 0:
            return ()
    return tuple(sorted((uuid, min(units, total)) for uuid, units in document.items()))


def write_given(units_by_uuid: Mapping[str, int], names: Names) -> dict[str, str]:
    """Return the annotation. given: units by uuid."""
    return {names.given: json.dumps(units_by_uuid, separators=(",", ":"), sort_keys=True)}
