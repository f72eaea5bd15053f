"""A legacy Policy around its extenders: its plug-ins, and the reading of 1.22.

Its predicates and priorities become a profile: which plug-ins filter and score. The tables are
1.22's (pkg/scheduler/framework/plugins/legacy_registry.go), the last release that reads a Policy.
Order matters: the first filter that objects gives the reason that users read.
"""

from collections.abc import Iterable, Mapping

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields, fields_of, flag, items, number, text
from gpushare.wire.scheduler.profiles import PluginSet, Profile
from gpushare.wire.scheduler.schema import POLICY_KEYS

POLICY = "Policy"
"""`Profile.defaults` of a Policy: no plug-ins but those listed, PreFilter and PreScore included."""

_SPREAD = "PodTopologySpread"
_GENERAL = ("NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity")

_PREDICATES: Mapping[str, tuple[str, ...]] = {
    "CheckNodeUnschedulable": ("NodeUnschedulable",),
    "GeneralPredicates": _GENERAL,
    "HostName": ("NodeName",),
    "PodFitsHostPorts": ("NodePorts",),
    "MatchNodeSelector": ("NodeAffinity",),
    "PodFitsResources": ("NodeResourcesFit",),
    "NoDiskConflict": ("VolumeRestrictions",),
    "PodToleratesNodeTaints": ("TaintToleration",),
    "CheckNodeLabelPresence": ("NodeLabel",),
    "CheckServiceAffinity": ("ServiceAffinity",),
    "MaxEBSVolumeCount": ("EBSLimits",),
    "MaxGCEPDVolumeCount": ("GCEPDLimits",),
    "MaxCSIVolumeCountPred": ("NodeVolumeLimits",),
    "MaxAzureDiskVolumeCount": ("AzureDiskLimits",),
    "MaxCinderVolumeCount": ("CinderLimits",),
    "CheckVolumeBinding": ("VolumeBinding",),
    "NoVolumeZoneConflict": ("VolumeZone",),
    "EvenPodsSpread": (_SPREAD,),
    "MatchInterPodAffinity": ("InterPodAffinity",),
}
"""In the order of their runs."""

_MANDATORY = frozenset({"PodToleratesNodeTaints", "CheckNodeUnschedulable"})
_NOT_BY_DEFAULT = frozenset(
    {
        *("HostName", "PodFitsHostPorts", "MatchNodeSelector", "PodFitsResources"),
        *("CheckNodeLabelPresence", "CheckServiceAffinity", "MaxCinderVolumeCount"),
    }
)
_PRIORITIES: Mapping[str, str] = {
    "BalancedResourceAllocation": "NodeResourcesBalancedAllocation",
    "EvenPodsSpreadPriority": _SPREAD,
    "ImageLocalityPriority": "ImageLocality",
    "InterPodAffinityPriority": "InterPodAffinity",
    "LeastRequestedPriority": "NodeResourcesLeastAllocated",
    "MostRequestedPriority": "NodeResourcesMostAllocated",
    "NodeAffinityPriority": "NodeAffinity",
    "NodeLabel": "NodeLabel",
    "NodePreferAvoidPodsPriority": "NodePreferAvoidPods",
    "RequestedToCapacityRatio": "RequestedToCapacityRatio",
    "SelectorSpreadPriority": _SPREAD,
    "ServiceAffinity": "ServiceAffinity",
    "TaintTolerationPriority": "TaintToleration",
}
_DEFAULT_WEIGHTS = {
    "SelectorSpreadPriority": 1,
    "InterPodAffinityPriority": 1,
    "LeastRequestedPriority": 1,
    "BalancedResourceAllocation": 1,
    "NodePreferAvoidPodsPriority": 10000,
    "NodeAffinityPriority": 1,
    "TaintTolerationPriority": 1,
    "ImageLocalityPriority": 1,
    "EvenPodsSpreadPriority": 2,
}
# Two old names, and the kinds of a custom predicate or priority by its argument.
_OLD_NAMES = {
    "PodFitsPorts": "PodFitsHostPorts",
    "ServiceSpreadingPriority": "SelectorSpreadPriority",
}
_CUSTOM_PREDICATES = {
    "serviceAffinity": "CheckServiceAffinity",
    "labelsPresence": "CheckNodeLabelPresence",
}
_CUSTOM_PRIORITIES = {
    "serviceAntiAffinity": "ServiceAffinity",
    "labelPreference": "NodeLabel",
    "requestedToCapacityRatioArguments": "RequestedToCapacityRatio",
}


def policy_profile(policy: Fields) -> Profile:
    """Return the plug-ins of a Policy, under its own spelling.

    Raises SettingsError with kube-scheduler's reason, naming the place.
    """
    args: dict[str, Fields] = {}
    predicates = _predicates(policy)
    weights = _weights(policy, args)
    listing = "System" if "SelectorSpreadPriority" in weights else "List"
    args[_SPREAD] = {"defaultingType": listing}
    hard = number(policy, "hardPodAffinitySymmetricWeight")
    if not 0 <= hard <= 100:
        raise SettingsError("hardPodAffinitySymmetricWeight: not in valid range [0-100]")
    if hard:
        args["InterPodAffinity"] = {"hardPodAffinityWeight": hard}
    filters = dict.fromkeys(plugin for name in predicates for plugin in _PREDICATES[name])
    # Of two priorities for one plug-in the first by name gives the weight.
    scores = {_PRIORITIES[name]: weights[name] for name in sorted(weights, reverse=True)}
    plugins = {
        "queueSort": PluginSet((("PrioritySort", 0),)),
        "filter": PluginSet(tuple((name, 0) for name in filters)),
        "postFilter": PluginSet((("DefaultPreemption", 0),)),
        "score": PluginSet(tuple(sorted(scores.items()))),
        "bind": PluginSet((("DefaultBinder", 0),)),
    }
    check_all = flag(policy, "alwaysCheckAllPredicates")
    return Profile(plugins=plugins, args=args, defaults=POLICY, check_all_filters=check_all)


def check_keys(document: Fields) -> list[str]:
    """Return a warning about keys at the top of a Policy that are not written as kube-scheduler
    does.

    Releases differ: 1.22.17 refuses them there, though within `extenders` it takes any case and
    passes over unknown names.
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


def _predicates(policy: Fields) -> list[str]:
    """Return the predicates in the order of their runs."""
    if policy.get("predicates") is None:
        chosen = _PREDICATES.keys() - _NOT_BY_DEFAULT
    else:
        chosen = {
            _known("predicate", entry, where, _PREDICATES, _CUSTOM_PREDICATES)
            for where, entry in _entries(policy, "predicates")
        }
    return [name for name in _PREDICATES if name in chosen | _MANDATORY]


def _weights(policy: Fields, args: dict[str, Fields]) -> dict[str, int]:
    """Return the weight of each priority; put the arguments of custom ones into `args`."""
    if policy.get("priorities") is None:
        return dict(_DEFAULT_WEIGHTS)
    weights: dict[str, int] = {}
    for where, entry in _entries(policy, "priorities"):
        weight = number(entry, "weight", where)
        if weight <= 0:
            raise SettingsError(f"{where}.weight: must be positive")
        if text(entry, "name", where) == "EqualPriority":
            continue
        name = _known("priority", entry, where, _PRIORITIES, _CUSTOM_PRIORITIES)
        weights[name] = weight
        ratio = fields_of(entry.get("argument"), where).get("requestedToCapacityRatioArguments")
        if ratio is not None:
            args[name] = fields_of(ratio, where)
    return weights


def _known(
    kind: str, entry: Fields, where: str, known: Iterable[str], custom: Mapping[str, str]
) -> str:
    """Return the name under which the tables have a predicate or priority."""
    written = text(entry, "name", where)
    argument = entry.get("argument")
    arguments = [key for key, value in fields_of(argument, where).items() if value is not None]
    if argument is not None and len([key for key in arguments if key in custom]) != 1:
        raise SettingsError(
            f"{where}: exactly 1 {kind} argument is required, one of {', '.join(custom)}"
        )
    name = _OLD_NAMES.get(written, written)
    if name in known:
        return name
    if argument is None:
        raise SettingsError(f'{where}: {kind} type not found for "{written[:80]}"')
    return next(custom[key] for key in arguments if key in custom)


def _entries(policy: Fields, key: str) -> list[tuple[str, Fields]]:
    places = ((f"{key}[{index}]", item) for index, item in enumerate(items(policy, key)))
    return [(where, fields_of(item, where)) for where, item in places]
