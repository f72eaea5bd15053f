"""The profiles of a KubeSchedulerConfiguration: which plug-ins are on, their weights and arguments.

Knows how a file says it and what kube-scheduler refuses in it; not which plug-ins there are, nor
what one makes of its arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields, fields_of, items, number, text
from gpushare.wire.scheduler.dialects import PLUGIN_POINTS, PROFILE_KEYS, Strict

DEFAULT_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True)
class PluginSet:
    """What a profile changes at one point: plug-ins with their weights (0: not said), and those
    that are off (`*`: all).
    """

    enabled: tuple[tuple[str, int], ...] = ()
    disabled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile.

    percentage: of nodes to score, 0 means adaptive. plugins: by point, `multiPoint` among them.
    args: of plug-ins, by name. defaults: the version of the file, whose defaults apply.
    check_all_filters: a Policy's alwaysCheckAllPredicates.
    """

    scheduler_name: str = DEFAULT_SCHEDULER
    percentage: int = 0
    plugins: Mapping[str, PluginSet] = field(default_factory=dict)
    args: Mapping[str, Fields] = field(default_factory=dict)
    defaults: str = "v1"
    check_all_filters: bool = False


def read_profiles(dialect: Strict, top: Fields, short: str) -> tuple[Profile, ...]:
    """Return the profiles of a file, one by default. `short`: its version, such as v1beta3.

    Raises SettingsError naming what kube-scheduler would refuse.
    """
    general = read_percentage(top, "")
    found = items(top, "profiles")
    # kube-scheduler fills in a name if there is one profile, and wants one in each of several.
    default = DEFAULT_SCHEDULER if len(found) == 1 else ""
    profiles = tuple(
        _profile(dialect, item, f"profiles[{index}]", (default, general, short))
        for index, item in enumerate(found)
    )
    names = [profile.scheduler_name for profile in profiles]
    if len(set(names)) != len(names):
        raise SettingsError("profiles: each needs a schedulerName of its own")
    if len({_queue_sort(profile) for profile in profiles}) > 1:
        raise SettingsError("profiles: all share one queue, so their queueSort plugin must be one")
    return profiles or (Profile(percentage=general, defaults=short),)


def read_percentage(fields: Fields, where: str, default: int = 0) -> int:
    """Return percentageOfNodesToScore. Raises SettingsError."""
    percentage = number(fields, "percentageOfNodesToScore", where, default)
    if not 0 <= percentage <= 100:
        path = f"{where}.percentageOfNodesToScore" if where else "percentageOfNodesToScore"
        raise SettingsError(f"{path}: must be from 0 to 100")
    return percentage


def _profile(dialect: Strict, item: object, where: str, defaults: tuple[str, int, str]) -> Profile:
    default_name, percentage, short = defaults
    fields = dialect.fields(item, PROFILE_KEYS, where)
    name = text(fields, "schedulerName", where, default_name)
    if not name:
        raise SettingsError(f"{where}.schedulerName: missing")
    return Profile(
        name,
        read_percentage(fields, where, percentage),
        _plugins(dialect, fields, where),
        _args(fields, where),
        short,
    )


def _plugins(dialect: Strict, profile: Fields, where: str) -> dict[str, PluginSet]:
    path = f"{where}.plugins" if where else "plugins"
    plugins = dialect.fields(profile.get("plugins"), PLUGIN_POINTS, path)
    return {
        point: _plugin_set(dialect, item, f"{path}.{point}")
        for point, item in plugins.items()
        if point in PLUGIN_POINTS
    }


def _plugin_set(dialect: Strict, item: object, where: str) -> PluginSet:
    fields = dialect.fields(item, ("enabled", "disabled"), where)
    enabled, disabled = (
        tuple(
            dialect.fields(entry, ("name", "weight"), f"{where}.{key}[{index}]")
            for index, entry in enumerate(items(fields, key, where))
        )
        for key in ("enabled", "disabled")
    )
    names = [text(entry, "name", f"{where}.enabled") for entry in enabled]
    if len(set(names)) != len(names):
        raise SettingsError(f"{where}.enabled: a plugin is named twice")
    return PluginSet(
        tuple(zip(names, (number(e, "weight", f"{where}.enabled") for e in enabled), strict=True)),
        tuple(text(entry, "name", f"{where}.disabled") for entry in disabled),
    )


def _args(profile: Fields, where: str) -> dict[str, Fields]:
    path = f"{where}.pluginConfig" if where else "pluginConfig"
    found: dict[str, Fields] = {}
    for index, item in enumerate(items(profile, "pluginConfig", where)):
        here = f"{path}[{index}]"
        entry = fields_of(item, here)
        name = text(entry, "name", here)
        if name in found:
            raise SettingsError(f"{here}: a second entry for plugin {name[:80]!r}")
        found[name] = fields_of(entry.get("args"), f"{here}.args")
    return found


def _queue_sort(profile: Profile) -> tuple[str, ...]:
    enabled = profile.plugins.get("queueSort", PluginSet()).enabled
    return tuple(name for name, _ in enabled) or ("PrioritySort",)
