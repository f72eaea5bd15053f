"""The content of kube-scheduler's file: the keys of each version, their types, and how strict each
way of reading is.

`strict` reads a KubeSchedulerConfiguration as kube-scheduler does: keys exactly as written, no key
that it does not know, no text for a number. `lenient` reads a Policy, whose extenders may be
written in any case. Both return the document with whole numbers as int and durations in seconds, so
that later readers look at values alone. The readers do not know the meaning of fields together.

The tables are those of k8s.io/kube-scheduler/config and k8s.io/component-base/config in the
releases 1.22 to 1.37; `tests/e2e/test_scheduler_files.py` holds them against kube-scheduler itself.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gpushare.errors import SettingsError
from gpushare.wire.fields import fields_of, parse_duration

OLDEST, NEWEST = 22, 37
"""Minor releases of kube-scheduler whose files are known."""

RELEASES: Final = MappingProxyType(
    {"v1beta1": (19, 22), "v1beta2": (22, 27), "v1beta3": (23, 28), "v1": (25, 999)}
)
"""The first and the last minor release that reads a KubeSchedulerConfiguration, by its version."""

DEFAULT_TIMEOUT = 5.0
"""Seconds kube-scheduler waits for an extender that sets no httpTimeout."""

Kind = str | Mapping[str, "Kind"] | tuple["Kind"]
"""The type of a value: a word of `_Reader._plain`, an object by its keys, or a list of one kind."""

Table = Mapping[str, Kind]

_TLS: Table = {
    **dict.fromkeys(("serverName", "certFile", "keyFile", "caFile"), "text"),
    **dict.fromkeys(("certData", "keyData", "caData"), "bytes"),
    "insecure": "flag",
}
_EXTENDER: Table = {
    **dict.fromkeys(("urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb"), "text"),
    "bindVerb": "text",
    "weight": "int64",
    "enableHTTPS": "flag",
    "tlsConfig": _TLS,
    "httpTimeout": "duration",
    "nodeCacheCapable": "flag",
    "ignorable": "flag",
    "managedResources": ({"name": "text", "ignoredByScheduler": "flag"},),
}
_PLUGIN_SET: Table = {
    "enabled": ({"name": "text", "weight": "int32"},),
    "disabled": ({"name": "text", "weight": "int32"},),
}
PLUGIN_POINTS = (
    *("multiPoint", "preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore"),
    *("score", "reserve", "permit", "preBind", "bind", "postBind"),
    *("placementGenerate", "placementScore", "podGroupPostFilter"),
)
_PROFILE: Table = {
    "schedulerName": "text",
    "percentageOfNodesToScore": "int32",
    "plugins": dict.fromkeys(PLUGIN_POINTS, _PLUGIN_SET),
    "pluginConfig": ({"name": "text", "args": "any"},),
}
_COMPONENT: Table = {
    "apiVersion": "text",
    "kind": "text",
    "parallelism": "int32",
    "leaderElection": {
        "leaderElect": "flag",
        **dict.fromkeys(("leaseDuration", "renewDeadline", "retryPeriod"), "duration"),
        **dict.fromkeys(("resourceLock", "resourceName", "resourceNamespace"), "text"),
    },
    "clientConnection": {
        **dict.fromkeys(("kubeconfig", "acceptContentTypes", "contentType"), "text"),
        "qps": "number",
        "burst": "int32",
    },
    "healthzBindAddress": "text",
    "metricsBindAddress": "text",
    "enableProfiling": "flag",
    "enableContentionProfiling": "flag",
    "percentageOfNodesToScore": "int32",
    "podInitialBackoffSeconds": "int64",
    "podMaxBackoffSeconds": "int64",
    "profiles": (_PROFILE,),
    "extenders": (_EXTENDER,),
    "delayCacheUntilActive": "flag",
}
_LIMITED: Mapping[str, tuple[int, int, tuple[str, ...]]] = {
    # Keys by their path without indices: the first and the last release that has them, and the
    # versions, () for all.
    "healthzBindAddress": (19, 27, ("v1beta1", "v1beta2")),
    "metricsBindAddress": (19, 27, ("v1beta1", "v1beta2")),
    "delayCacheUntilActive": (28, 999, ("v1",)),
    "profiles.percentageOfNodesToScore": (26, 999, ("v1",)),
    "profiles.plugins.multiPoint": (23, 999, ()),
    "profiles.plugins.preEnqueue": (26, 999, ()),
    "profiles.plugins.placementGenerate": (36, 999, ("v1",)),
    "profiles.plugins.placementScore": (36, 999, ("v1",)),
    "profiles.plugins.podGroupPostFilter": (37, 999, ("v1",)),
}
_POLICY: Table = {
    "apiVersion": "text",
    "kind": "text",
    "predicates": "any",
    "priorities": "any",
    "extenders": ({**_EXTENDER, "httpTimeout": "nanoseconds"},),
    "hardPodAffinitySymmetricWeight": "int32",
    "alwaysCheckAllPredicates": "flag",
}
POLICY_KEYS = frozenset(_POLICY)

_BITS = {"int32": 32, "int64": 64}
_LONGEST = 2**63
"""Nanoseconds that a Go duration cannot hold."""


@dataclass(slots=True)
class Document:
    """A document that was read."""

    fields: Mapping[str, object]
    """The document: known keys alone, whole numbers as int, durations in seconds."""

    unknown: list[str] = field(default_factory=list)
    """Paths of the keys that are in no table."""

    remarks: list[str] = field(default_factory=list)
    """Further reasons for a warning."""


def strict(document: object, version: str, release: int = 0) -> Document:
    """Return a KubeSchedulerConfiguration of `version`, such as v1beta3.

    release: the minor release of kube-scheduler that reads it; 0: any that reads this version.
    Raises SettingsError naming the key that kube-scheduler refuses. A key that no known release has
    is refused in other versions than v1: only v1 may have gained it since.
    """
    reader = _SchemaReader(version, (release, release) if release else RELEASES[version])
    return Document(reader.fields(document, _COMPONENT, "", ""), reader.unknown)


def lenient(document: object) -> Document:
    """Return a Policy: its extenders' keys in any case, unknown keys passed over.

    Raises SettingsError.
    """
    reader = _PolicyReader("Policy", (0, 22))
    return Document(reader.fields(document, _POLICY, "", ""), reader.unknown, reader.remarks)


class _SchemaReader:
    """Reads strictly; `version` and `releases`, the first and the last that may read it, say which
    keys there are.
    """

    def __init__(self, version: str, releases: tuple[int, int]) -> None:
        self._version = version
        self._releases = releases
        self.unknown: list[str] = []
        self.remarks: list[str] = []

    def value(self, value: object, kind: Kind, where: str, path: str) -> object:
        """Return a value of this kind. `where`: its place; `path`: the same without indices.

        Null is like a missing value, except for a duration.
        """
        if isinstance(kind, str):
            return self._plain(value, kind, where)
        if isinstance(kind, tuple):
            if value is not None and not isinstance(value, list):
                raise SettingsError(f"{where}: must be a list")
            return [
                self.value(item, kind[0], f"{where}[{index}]", path)
                for index, item in enumerate(value or ())
            ]
        return self.fields(value, kind, where, path)

    def fields(self, value: object, table: Table, where: str, path: str) -> Mapping[str, object]:
        """Return an object by the keys of the table; `where` and `path` as of `value`."""
        by_key: dict[str, object] = {}
        for written, item in fields_of(value, where or "scheduler configuration").items():
            key = self._key(written, table, where, path)
            if key:
                inner = f"{path}.{key}" if path else key
                by_key[key] = self.value(item, table[key], place(where, key), inner)
        return {key: item for key, item in by_key.items() if item is not None}

    def _key(self, written: str, table: Table, where: str, path: str) -> str:
        """Return the key of the table that is meant; "" if it is unknown, which is noted."""
        if written in table:
            inner = f"{path}.{written}" if path else written
            first, last, versions = _LIMITED.get(inner, (0, 999, ()))
            if versions and self._version not in versions:
                raise SettingsError(
                    f"{place(where, written)}: a key of {' and '.join(versions)}, and not of"
                    f" {self._version}; kube-scheduler does not start with it"
                )
            if first > self._releases[1] or last < self._releases[0]:
                raise SettingsError(
                    f"{place(where, written)}: kube-scheduler has this key from 1.{first} on, and"
                    f" 1.{self._releases[1]} does not start with it"
                )
            return written
        right = next((key for key in table if key.lower() == written.lower()), "")
        if right:
            raise SettingsError(
                f"{place(where, written)}: write {right}; kube-scheduler does not start otherwise"
            )
        if self._version != "v1" or self._releases[1] <= NEWEST:
            raise SettingsError(
                f"{place(where, written)}: unknown; kube-scheduler does not start with a key that"
                " it does not know"
            )
        self.unknown.append(place(where, written))
        return ""

    def _plain(self, value: object, kind: str, where: str) -> object:
        if kind in ("duration", "nanoseconds"):
            return self._seconds(value, where)
        if value is None or kind == "any":
            return value
        if kind == "flag":
            if not isinstance(value, bool):
                raise SettingsError(f"{where}: must be true or false")
            return value
        if kind in ("text", "bytes"):
            if not isinstance(value, str):
                raise SettingsError(f"{where}: must be text")
            return value if kind == "text" else _pem(value, where)
        if isinstance(value, bool) or not isinstance(value, int | float):
            expected = "a number" if kind == "number" else "a whole number"
            raise SettingsError(f"{where}: must be {expected}")
        if kind == "number":
            try:
                return float(value)
            except OverflowError as error:
                raise SettingsError(f"{where}: is too large for a number") from error
        # Infinities and texts that are no number are in no range, and cannot be made whole.
        fits = -(1 << _BITS[kind] - 1) <= value < 1 << _BITS[kind] - 1
        if not fits or value != int(value):
            raise SettingsError(f"{where}: must be a whole number of {_BITS[kind]} bits")
        return int(value)

    def _seconds(self, value: object, where: str) -> float | None:
        if not isinstance(value, str):
            raise SettingsError(f"{where}: must be a duration as text, such as 5s")
        try:
            return in_range(parse_duration(value), where)
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from error


class _PolicyReader(_SchemaReader):
    """Reads a Policy: any case and unknown keys within extenders, and nanoseconds."""

    def _key(self, written: str, table: Table, where: str, path: str) -> str:
        right = next((key for key in table if key.lower() == written.lower()), "")
        if not right and where:  # `check_keys` tells of those at the top
            self.unknown.append(place(where, written))
        return right

    def _seconds(self, value: object, where: str) -> float | None:
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return in_range(max(-1, min(value, _LONGEST)) / 1e9, where)
        seconds = super()._seconds(value, where)
        if seconds is not None:
            self.remarks.append(
                f"{where}: kube-scheduler does not start from text here; it counts nanoseconds, so"
                f" write {round(seconds * 1e9)}"
            )
        return seconds


def in_range(seconds: float, where: str) -> float:
    """Return the seconds. Raises SettingsError for a value that no timeout can have."""
    if not 0 <= seconds < _LONGEST / 1e9:
        raise SettingsError(f"{where}: must not be negative, nor longer than 292 years")
    return seconds


def place(where: str, key: str) -> str:
    """Return the path of a key, as messages show it."""
    shown = key[:40] if key.isprintable() else repr(key[:40])
    return f"{where}.{shown}" if where else shown


def _pem(value: str, where: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode("ascii")
    except ValueError as error:
        raise SettingsError(f"{where}: must be PEM in base64") from error
