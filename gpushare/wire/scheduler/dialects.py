"""The two ways in which kube-scheduler reads a configuration, and the keys it knows.

Knows which keys there are, how strictly each way takes their spelling, and how each writes a
timeout; not what the fields mean together. A reader keeps what it could not use, so that one
warning can name all of it.

Tested in `tests/unit/wire/scheduler/test_config.py`.
"""

from collections.abc import Iterable

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields, fields_of, parse_duration

DEFAULT_TIMEOUT = 5.0
"""Seconds kube-scheduler waits for an extender that sets no httpTimeout."""


class Strict:
    """How a KubeSchedulerConfiguration is read: keys exactly as written, durations as text.

    unknown: paths of unknown keys. remarks: what else is worth a warning.
    """

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.remarks: list[str] = []

    def fields(self, value: object, known: Iterable[str], where: str) -> Fields:
        """Return the object at `where`.

        A key in the wrong case is refused: kube-scheduler would not read it.

        kube-scheduler refuses every key it does not know. We cannot know those of a later release,
        so the others are only noted.
        """
        fields = fields_of(value, where)
        canonical = {key.lower(): key for key in known}
        for key in fields:
            right = canonical.get(key.lower())
            if right is None:
                self.unknown.append(_path(where, key))
            elif right != key:
                raise SettingsError(
                    f"{_path(where, key)}: write {right}; kube-scheduler does not start otherwise"
                )
        return fields

    def seconds(self, value: object, where: str, default: float = DEFAULT_TIMEOUT) -> float:
        """Return a duration in seconds; 0 and missing mean the default, as in kube-scheduler."""
        if value is None:
            return default
        if not isinstance(value, str):
            raise SettingsError(f"{where}: must be a duration as text, such as 5s")
        try:
            seconds = parse_duration(value)
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from error
        return _in_range(seconds, where) or default


class Legacy(Strict):
    """How the extenders of a Policy are read: keys in any case, nanoseconds."""

    def fields(self, value: object, known: Iterable[str], where: str) -> Fields:
        """Return the object under the known keys' spelling; of two spellings the last counts."""
        canonical = {key.lower(): key for key in known}
        found = {}
        for key, item in fields_of(value, where).items():
            right = canonical.get(key.lower())
            if right is None:
                self.unknown.append(_path(where, key))
            else:
                found[right] = item
        return found

    def seconds(self, value: object, where: str, default: float = DEFAULT_TIMEOUT) -> float:
        """Return a duration in seconds. Text is read, but kube-scheduler would not read it."""
        if isinstance(value, int) and not isinstance(value, bool):
            return _in_range(max(-1, min(value, _MAX_LENGTH)) / 1e9, where) or default
        seconds = super().seconds(value, where, default)
        if value is not None:
            self.remarks.append(
                f"{where}: kube-scheduler does not start from text here; it counts nanoseconds,"
                f" so write {round(seconds * 1e9)}"
            )
        return seconds


def _in_range(seconds: float, where: str) -> float:
    if not 0 <= seconds < _MAX_LENGTH / 1e9:
        raise SettingsError(f"{where}: must not be negative, nor longer than 292 years")
    return seconds


def _path(where: str, key: str) -> str:
    key_text = key[:40] if key.isprintable() else repr(key[:40])
    return f"{where}.{key_text}" if where else key_text


_MAX_LENGTH = 2**63
"""Nanoseconds a Go duration cannot hold."""

RESOURCE_KEYS = frozenset({"name", "ignoredByScheduler"})
TLS_KEYS = frozenset(
    {"insecure", "serverName", "certFile", "keyFile", "caFile", "certData", "keyData", "caData"}
)
EXTENDER_KEYS = frozenset(
    {
        "urlPrefix",
        "filterVerb",
        "preemptVerb",
        "prioritizeVerb",
        "bindVerb",
        "weight",
        "enableHTTPS",
        "tlsConfig",
        "httpTimeout",
        "nodeCacheCapable",
        "ignorable",
        "managedResources",
    }
)
POLICY_KEYS = frozenset(
    {
        "apiVersion",
        "kind",
        "predicates",
        "priorities",
        "extenders",
        "hardPodAffinitySymmetricWeight",
        "alwaysCheckAllPredicates",
    }
)
COMPONENT_KEYS = frozenset(
    {
        "apiVersion",
        "kind",
        "leaderElection",
        "clientConnection",
        "debugging",
        "healthzBindAddress",
        "metricsBindAddress",
        "enableProfiling",
        "enableContentionProfiling",
        "percentageOfNodesToScore",
        "podInitialBackoffSeconds",
        "podMaxBackoffSeconds",
        "parallelism",
        "profiles",
        "extenders",
        "delayCacheUntilActive",
        "percentageOfPlacementsToScore",
    }
)
PROFILE_KEYS = frozenset(
    {
        "schedulerName",
        "percentageOfNodesToScore",
        "percentageOfPlacementsToScore",
        "plugins",
        "pluginConfig",
    }
)
PLUGIN_POINTS = frozenset(
    {
        "multiPoint",
        "preEnqueue",
        "queueSort",
        "preFilter",
        "filter",
        "postFilter",
        "preScore",
        "score",
        "reserve",
        "permit",
        "preBind",
        "bind",
        "postBind",
        "placementGenerate",
        "placementScore",
        "podGroupPostFilter",
    }
)
LEADER_KEYS = frozenset(
    {
        "leaderElect",
        "leaseDuration",
        "renewDeadline",
        "retryPeriod",
        "resourceLock",
        "resourceName",
        "resourceNamespace",
    }
)
CLIENT_KEYS = frozenset({"kubeconfig", "acceptContentTypes", "contentType", "qps", "burst"})
