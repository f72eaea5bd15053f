"""The legacy Policy around its extenders, and where an old configuration says it is.

Knows the Policy's `priorities`, without which one release does not start, and `algorithmSource`,
by which v1alpha1 and v1alpha2 name a Policy in a file or a ConfigMap. Reading those is the
caller's business.

Tested in `tests/unit/wire/scheduler/test_fixtures.py`.
"""

from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.fields import NAME, Fields, fields_of, items, text
from gpushare.wire.scheduler.dialects import POLICY_KEYS

POLICY_KEY = "policy.cfg"
"""The key of a Policy in a ConfigMap; kube-scheduler has it fixed."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A Policy in a file, as kube-scheduler's host sees it."""

    path: str

    def __str__(self) -> str:
        return f"policy file {self.path}"


@dataclass(frozen=True, slots=True)
class PolicyConfigMap:
    """A Policy under the key `policy.cfg` of a ConfigMap."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"policy ConfigMap {self.namespace}/{self.name}"


PolicySource = PolicyFile | PolicyConfigMap


def policy_source(document: object) -> PolicySource | None:
    """Return what else to read: the Policy that a parsed configuration names; None if it names
    none.

    As kube-scheduler does, a provider comes before a policy and a file before a ConfigMap. Raises
    SettingsError naming what is wrong.
    """
    top = fields_of(document, "scheduler configuration")
    if not text(top, "apiVersion").endswith(("/v1alpha1", "/v1alpha2")):
        return None
    source = fields_of(top.get("algorithmSource"), "algorithmSource")
    if source.get("provider") is not None or source.get("policy") is None:
        return None
    where = "algorithmSource.policy"
    policy = fields_of(source["policy"], where)
    if policy.get("file") is not None:
        file = fields_of(policy["file"], f"{where}.file")
        return PolicyFile(_required(text(file, "path", f"{where}.file"), f"{where}.file.path"))
    if policy.get("configMap") is None:
        raise SettingsError(f"{where}: must name a file or a configMap")
    where = f"{where}.configMap"
    place = fields_of(policy["configMap"], where)
    return PolicyConfigMap(_name(place, "namespace", where), _name(place, "name", where))


def check_keys(document: Fields) -> list[str]:
    """Return a warning about keys at the top of a Policy that are not written as kube-scheduler
    does.

    Releases differ: 1.22.17 refuses them there, though within `extenders` it takes any case and
    passes over what it does not know.
    """
    strange = [key for key in document if key not in POLICY_KEYS]
    if not strange:
        return []
    listed = ", ".join(key[:40] if key.isprintable() else repr(key[:40]) for key in strange[:8])
    known = ", ".join(sorted(POLICY_KEYS))
    return [f"{listed}: kube-scheduler 1.22 does not start with such keys; it knows {known}"]


def check_priorities(policy: Fields) -> list[str]:
    """Return warnings about a Policy's `priorities`, under its own spelling. Raises SettingsError.

    kube-scheduler 1.22 fills in its default priorities if the key is missing or null, and cannot
    load the arguments of one of them (LeastRequestedPriority): tried with 1.22.17.
    """
    if policy.get("priorities") is None:
        return [
            "priorities: missing; kube-scheduler 1.22 does not start from a Policy without it, and"
            ' 1.23 and later read no Policy at all; add "priorities": [], or better the list that'
            " `gpushare scheduler-config --kubernetes 1.22` prints"
        ]
    names = [fields_of(item, "priorities").get("name") for item in items(policy, "priorities")]
    if "LeastRequestedPriority" in names:
        return ["priorities: kube-scheduler 1.22 does not start with LeastRequestedPriority in it"]
    return []


def _required(value: str, where: str) -> str:
    if not value or "\0" in value:
        raise SettingsError(f"{where}: missing")
    return value


def _name(place: Fields, key: str, where: str) -> str:
    """Return a name that is safe in a path of the API."""
    value = _required(text(place, key, where), f"{where}.{key}")
    if NAME.fullmatch(value) is None:
        raise SettingsError(f"{where}.{key}: {value[:80]!r} is no Kubernetes name")
    return value
