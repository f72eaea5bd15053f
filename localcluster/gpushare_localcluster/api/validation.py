"""Rules for objects of every kind: shape, names, labels, annotations.

Pure. A wrong JSON type is 400 (decoding fails), a wrong value is 422.
"""

import re

from gpushare_localcluster.api.objects import Object, metadata, name_of
from gpushare_localcluster.api.quantities import parse
from gpushare_localcluster.api.resources import NAMESPACES, Resource
from gpushare_localcluster.api.status import StatusError, bad_request, invalid

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

ANNOTATIONS_LIMIT = 256 * 1024
"""Upper bound on the bytes of all annotations of an object together."""

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character"
)


def is_label(text: str) -> bool:
    """Return whether the text is a DNS label (namespaces, containers)."""
    return len(text) <= 63 and bool(_LABEL.fullmatch(text))


def is_subdomain(text: str) -> bool:
    """Return whether the text is a DNS subdomain (nearly every name)."""
    return len(text) <= 253 and bool(_SUBDOMAIN.fullmatch(text))


def check_type(resource: Resource, body: Object) -> None:
    """Refuse a body of another kind or API version. Raises StatusError: 400."""
    expected = {"kind": resource.kind, "apiVersion": resource.api_version}
    for field, value in expected.items():
        if body.get(field, value) != value:
            raise bad_request(
                f"the {field} in the data ({body[field]!r}) does not match the expected {value}"
            )


def check_shape(body: Object) -> None:
    """Refuse metadata, spec or status of the wrong JSON type. Raises StatusError: 400."""
    for field in ("metadata", "spec", "status"):
        if not isinstance(body.get(field), dict | None):
            raise bad_request(f"{field} must be an object")
    meta = metadata(body)
    for field in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        if not isinstance(meta.get(field), str | None):
            raise bad_request(f"metadata.{field} must be a string")
    for field in ("labels", "annotations"):
        pairs = {} if meta.get(field) is None else meta[field]
        if not isinstance(pairs, dict):
            raise bad_request(f"metadata.{field} must be an object")
        for key, value in pairs.items():
            if not isinstance(value, str):
                raise bad_request(f"metadata.{field}[{key!r}] must be a string, not {value!r}")
    for field, item_type in (("finalizers", str), ("ownerReferences", dict)):
        items = [] if meta.get(field) is None else meta[field]
        if not isinstance(items, list) or not all(isinstance(item, item_type) for item in items):
            raise bad_request(f"metadata.{field} must be a list of {item_type.__name__}")


def check_metadata(resource: Resource, body: Object) -> None:
    """Refuse invalid names, labels and annotations. Raises StatusError: 422."""
    meta, name = metadata(body), name_of(body)

    def wrong(field: str, reason: str) -> StatusError:
        return invalid(resource.kind, name, f"metadata.{field}", reason)

    if not name:
        raise wrong("name", "Required value: name or generateName is required")
    valid = is_label(name) if resource is NAMESPACES else is_subdomain(name)
    is_segment = name not in (".", "..") and not set(name) & set("/%")
    if not (valid or (resource.any_name and is_segment)):
        raise wrong("name", f"Invalid value: {name!r}: {SUBDOMAIN_RULE}")
    for key, value in (meta.get("labels") or {}).items():
        if not is_qualified(key) or len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            raise wrong("labels", f"Invalid value: {key!r}: {value!r} is no label")
    annotations: dict[str, str] = meta.get("annotations") or {}
    odd = [key for key in annotations if not is_qualified(key.lower())]
    if odd:
        raise wrong("annotations", f"Invalid value: {odd[0]!r} is no qualified name")
    if sum(map(len, annotations)) + sum(map(len, annotations.values())) > ANNOTATIONS_LIMIT:
        raise wrong("annotations", f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes")


def is_qualified(key: str) -> bool:
    """Return whether the text is a qualified name (labels, annotations, resources)."""
    prefix, slash, name = key.rpartition("/")
    if slash and not is_subdomain(prefix):
        return False
    return len(name) <= 63 and bool(_QUALIFIED.fullmatch(name))


def is_native(resource: str) -> bool:
    """Return whether the resource is native; amounts of extended resources are integers."""
    return "/" not in resource or "kubernetes.io/" in resource


def check_amount(kind: str, name: str, field_path: str, resource: str, quantity: str) -> None:
    """Refuse an impossible amount of a resource. Raises StatusError: 422."""
    value, _ = parse(quantity)
    if value < 0:
        reason = "must be greater than or equal to 0"
        raise invalid(kind, name, field_path, f"Invalid value: {quantity!r}: {reason}")
    if value != value.to_integral_value() and (resource == "pods" or not is_native(resource)):
        raise invalid(kind, name, field_path, f"Invalid value: {quantity!r}: must be an integer")
