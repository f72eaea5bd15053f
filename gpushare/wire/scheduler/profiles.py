"""The profiles of a KubeSchedulerConfiguration: which plug-ins are on, their weights and arguments.

Knows how a file says profiles, and which of them kube-scheduler refuses; not the plug-ins, nor
the meaning of their arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields, fields_of, items, number, text

DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True)
class PluginSet:
    """The changes of a profile at one point: plug-ins with their weights (0: not said), and those
    that are off (`*`: all).
    """

    enabled: tuple[tuple[str, int], ...] = ()
    disabled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile."""

    scheduler_name: str = DEFAULT_SCHEDULER
    percentage: int = 0
    """Of nodes to score, 0 means adaptive."""
    plugins: Mapping[str, PluginSet] = field(default_factory=dict)
    """By point, `multiPoint` among them."""
    args: Mapping[str, Fields] = field(default_factory=dict)
    """Of plug-ins, by name."""
    defaults: str = "v1"
    """The version of the file, whose defaults apply."""
    check_all_filters: bool = False
    """A Policy's alwaysCheckAllPredicates."""


_GONE: Mapping[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            *("NodeLabel", "ServiceAffinity", "NodePreferAvoidPods", "RequestedToCapacityRatio"),
            *("NodeResourcesLeastAllocated", "NodeResourcesMostAllocated"),
        ),
        (22, ("v1beta1",)),
    ),
    "SelectorSpread": (27, ("v1beta1", "v1beta2")),
    **dict.fromkeys(
        ("AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"),
        (30, ("v1beta1", "v1beta2", "v1beta3", "v1")),
    ),
}
"""Plug-ins that kube-scheduler no longer has: the last release, and the versions that may name
them."""


def read_profiles(top: Fields, short: str, release: int = 0) -> tuple[Profile, ...]:
    """Return the profiles of a file that was read strictly, one by default.

    short: its version, such as v1beta3. release: of kube-scheduler, 0 if it is not known. Raises
    SettingsError naming the part that kube-scheduler would refuse.
    """
    general = read_percentage(top, "")
    listed = items(top, "profiles")
    # kube-scheduler fills in a name if there is one profile, and wants one in each of several.
    default = DEFAULT_SCHEDULER if len(listed) == 1 else ""
    profiles = []
    for index, item in enumerate(listed):
        where = f"profiles[{index}]"
        fields = fields_of(item, where)
        name = text(fields, "schedulerName") or default
        if not name:
            raise SettingsError(f"{where}.schedulerName: missing")
        percentage = read_percentage(fields, where, general)
        plugins, args = _plugins(fields, where), _args(fields, where)
        named = [
            (name, f"{where}.plugins.{point}")
            for point, plugin_set in plugins.items()
            for name, _ in plugin_set.enabled
        ]
        named += [(name, f"{where}.pluginConfig") for name in args]
        for plugin, place in named:
            last, versions = _GONE.get(plugin, (999, (short,)))
            if short not in versions or last < release:
                raise SettingsError(
                    f"{place}: kube-scheduler has no plug-in {plugin} any more, and does not start"
                )
        profiles.append(Profile(name, percentage, plugins, args, short))
    names = [profile.scheduler_name for profile in profiles]
    if len(set(names)) != len(names):
        raise SettingsError("profiles: each needs a schedulerName of its own")
    if len({_queue_sort(profile) for profile in profiles}) > 1:
        raise SettingsError("profiles: all share one queue, so their queueSort plugin must be one")
    return tuple(profiles) or (Profile(percentage=general, defaults=short),)


def read_percentage(fields: Fields, where: str, default: int = 0) -> int:
    """Return percentageOfNodesToScore. Raises SettingsError."""
    percentage = number(fields, "percentageOfNodesToScore", where, default)
    if not 0 <= percentage <= 100:
        path = f"{where}.percentageOfNodesToScore" if where else "percentageOfNodesToScore"
        raise SettingsError(f"{path}: must be from 0 to 100")
    return percentage


def _plugins(profile: Fields, where: str) -> dict[str, PluginSet]:
    plugins: dict[str, PluginSet] = {}
    for point, item in fields_of(profile.get("plugins"), where).items():
        path = f"{where}.plugins.{point}"
        fields = fields_of(item, path)
        enabled = [fields_of(entry, path) for entry in items(fields, "enabled")]
        names = [text(entry, "name") for entry in enabled]
        if len(set(names)) != len(names):
            raise SettingsError(f"{path}.enabled: a plugin is named twice")
        if point == "queueSort" and len(names) > 1:
            raise SettingsError(f"{path}.enabled: one plug-in can sort the queue")
        weights = [number(entry, "weight") for entry in enabled]
        off = tuple(text(fields_of(entry, path), "name") for entry in items(fields, "disabled"))
        plugins[point] = PluginSet(tuple(zip(names, weights, strict=True)), off)
    return plugins


def _args(profile: Fields, where: str) -> dict[str, Fields]:
    args: dict[str, Fields] = {}
    for index, item in enumerate(items(profile, "pluginConfig")):
        here = f"{where}.pluginConfig[{index}]"
        entry = fields_of(item, here)
        name = text(entry, "name", here)
        if name in args:
            raise SettingsError(f"{here}: a second entry for plugin {name[:80]!r}")
        args[name] = fields_of(entry.get("args"), f"{here}.args")
    return args


def _queue_sort(profile: Profile) -> PluginSet:
    """Return how the profile sorts the queue, as kube-scheduler compares it with the others."""
    queue_sort = profile.plugins.get("queueSort", PluginSet())
    if profile.defaults in ("v1", "v1beta3"):
        return queue_sort
    # Before, the default was a part of each profile unless it was disabled; v1beta2 counts a
    # plug-in that is enabled once more as one.
    off = {"*", "PrioritySort"}.intersection(queue_sort.disabled)
    enabled = (*(() if off else (("PrioritySort", 0),)), *queue_sort.enabled)
    return PluginSet(tuple(dict.fromkeys(enabled)) if profile.defaults == "v1beta2" else enabled)
