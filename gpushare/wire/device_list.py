"""How the device plug-in of a node hands devices to containers: an annotation of the Node.

Compact JSON, for people and doctor:

    {"strategy":"cdi-cri","reason":"...","problem":"..."}

`problem`, left out if empty, says why containers may get no device by that strategy.

Tested in `tests/unit/wire/test_device_list.py`.
"""

import json
from dataclasses import dataclass

from gpushare.errors import AnnotationError

DEVICE_LIST = "gpushare.io/device-list"
"""The annotation."""

_MAX_DOCUMENT_LENGTH = 4096
_MAX_TEXT_LENGTH = 512


@dataclass(frozen=True, slots=True)
class DeviceList:
    """A value of --device-list-strategy, and the reason for the choice."""

    strategy: str
    reason: str
    problem: str = ""


def encode_device_list(device_list: DeviceList) -> str:
    """Return the annotation's text."""
    document = {"strategy": device_list.strategy, "reason": device_list.reason[:_MAX_TEXT_LENGTH]}
    if device_list.problem:
        document["problem"] = device_list.problem[:_MAX_TEXT_LENGTH]
    return json.dumps(document, separators=(",", ":"))


def decode_device_list(text: str) -> DeviceList:
    """Return the strategy in an annotation. Raises AnnotationError."""
    if len(text) > _MAX_DOCUMENT_LENGTH:
        raise AnnotationError(f"device-list: longer than {_MAX_DOCUMENT_LENGTH} characters")
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnnotationError("device-list: not JSON") from error
    if not isinstance(document, dict):
        raise AnnotationError("device-list: must be an object")
    texts = [document.get(key, "") for key in ("strategy", "reason", "problem")]
    if not texts[0] or not all(isinstance(item, str) for item in texts):
        raise AnnotationError("device-list: strategy, reason and problem must be text")
    return DeviceList(*texts)
