"""The options of a scheduler, and from a profile in its file to a framework with its plug-ins.

The defaults, and the meaning of `enabled`, `disabled`, `*` and `multiPoint`, are those of
kube-scheduler (mergePluginSet and expandMultiPointPlugins of 1.37). A plug-in of kube-scheduler
that the small scheduler lacks is left out with a warning; an unknown plug-in is refused.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields
from gpushare.wire.scheduler.config import ExtenderConfig, SchedulerConfig
from gpushare.wire.scheduler.policy import POLICY
from gpushare.wire.scheduler.profiles import PluginSet, Profile
from gpushare_localcluster.scheduler.framework import POINTS, Plugin, joins
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.plugins.registry import DEFAULTS, IN_TREE, NOT_BUILT, Factory
from gpushare_localcluster.scheduler.runtime import Framework

log = logging.getLogger(__name__)
GROUP = "gpushare.scheduler_plugins"
"""Entry points of plug-ins in other packages: NAME = module:Class."""


@dataclass(frozen=True)
class SchedulerOptions:
    """Options of one scheduler. Backoffs in seconds; `seed` makes the breaking of ties repeatable.

    `empty_candidates`: see Preemption.
    """

    extenders: tuple[ExtenderConfig, ...] = ()
    profiles: tuple[Profile, ...] = (Profile(),)
    initial_backoff: float = 1.0
    max_backoff: float = 10.0
    seed: int | None = None
    empty_candidates: bool = True

    @property
    def scheduler_names(self) -> frozenset[str]:
        """The scheduler names of the profiles."""
        return frozenset(profile.scheduler_name for profile in self.profiles)

    @property
    def ignored_resources(self) -> frozenset[str]:
        """Resources counted only by an extender (managedResources with ignoredByScheduler)."""
        return frozenset(
            item.name
            for extender in self.extenders
            for item in extender.managed_resources
            if item.ignored_by_scheduler
        )


def options_from(config: SchedulerConfig, *, seed: int | None = None) -> SchedulerOptions:
    """Return the options in a configuration file. Raises SettingsError for an unsupported one."""
    for extender in config.extenders:
        if not extender.url_prefix.startswith("http://"):
            raise SettingsError(
                f"{extender.url_prefix}: the local cluster's scheduler calls extenders by http only"
            )
    return SchedulerOptions(
        extenders=config.extenders,
        profiles=config.profiles,
        initial_backoff=config.pod_initial_backoff,
        max_backoff=config.pod_max_backoff,
        seed=seed,
    )


def registry() -> dict[str, Factory]:
    """Return the factories of all plug-ins by name: in-tree plug-ins, then entry points."""
    factories: dict[str, Factory] = dict(IN_TREE)
    for entry in entry_points(group=GROUP):
        if entry.name in factories:
            raise SettingsError(f"a plugin named {entry.name} already exists ({entry.value})")
        factories[entry.name] = entry.load()
    return factories


def build_frameworks(
    profiles: Sequence[Profile], handle: Handle, ignored: frozenset[str] = frozenset()
) -> None:
    """Put the frameworks of all profiles into the handle; see build_framework."""
    factories = registry()
    for profile in profiles:
        build_framework(profile, handle, factories, ignored)


def build_framework(
    profile: Profile, handle: Handle, factories: Mapping[str, Factory], ignored: frozenset[str]
) -> Framework:
    """Return the profile's framework, and put it into the handle.

    ignored: resources counted only by an extender; as in kube-scheduler they replace
    NodeResourcesFit's own `ignoredResources`. Raises SettingsError.
    """
    title = f'profile "{profile.scheduler_name}"'
    sets = {point: profile.plugins.get(point, PluginSet()) for point in ("multiPoint", *POINTS)}
    multi = _merged(PluginSet(enabled=DEFAULTS[profile.defaults]), sets["multiPoint"])
    args = dict(profile.args)
    if ignored:
        args["NodeResourcesFit"] = {
            **args.get("NodeResourcesFit", {}),
            "ignoredResources": sorted(ignored),
        }
    names = [name for name, _ in multi]
    names += [name for point in POINTS for name, _ in sets[point].enabled]
    plugins = _made(names, args, handle, factories, title)
    points = {
        point: [plugins[name] for name in _expanded(point, sets[point], multi, plugins, title)]
        for point in POINTS
    }
    if profile.defaults == POLICY:  # a predicate or priority includes its preparation
        for before, point in (("preFilter", "filter"), ("preScore", "score")):
            points[before] = [plugin for plugin in points[point] if joins(plugin, before)]
    if len(points["queueSort"]) != 1:
        raise SettingsError(f"{title}: one queue sort plugin is needed, not {points['queueSort']}")
    if not points["bind"]:
        raise SettingsError(f"{title}: at least one bind plugin is needed")
    weights = {name: weight or 1 for name, weight in (*multi, *sets["score"].enabled)}
    framework = Framework(
        tuple(plugins.values()),
        points=points,
        weights=weights,
        percentage=profile.percentage,
        check_all_filters=profile.check_all_filters,
    )
    handle.profiles[profile.scheduler_name] = framework
    return framework


def _merged(defaults: PluginSet, custom: PluginSet) -> tuple[tuple[str, int], ...]:
    """Return the enabled defaults with weights of `custom`, then the other custom plug-ins."""
    custom_weights = dict(custom.enabled)
    merged_plugins: list[tuple[str, int]] = []
    if "*" not in custom.disabled:
        merged_plugins = [
            (name, custom_weights.get(name, weight))
            for name, weight in defaults.enabled
            if name not in custom.disabled
        ]
    names = {name for name, _ in merged_plugins}
    return (
        *merged_plugins,
        *((name, weight) for name, weight in custom.enabled if name not in names),
    )


def _made(
    names: Sequence[str],
    args: Mapping[str, Fields],
    handle: Handle,
    factories: Mapping[str, Factory],
    title: str,
) -> dict[str, Plugin]:
    plugins: dict[str, Plugin] = {}
    left_out: set[str] = {name for name in args if name in NOT_BUILT}
    for name in names:
        if name in NOT_BUILT:
            left_out.add(name)
        elif name not in factories:
            supported = ", ".join(sorted(factories))
            raise SettingsError(f'{title}: plugin "{name}" does not exist; there are: {supported}')
        elif name not in plugins:
            try:
                plugins[name] = factories[name](args.get(name, {}), handle)
            except SettingsError as error:
                raise SettingsError(f'{title}: plugin "{name}": {error}') from error
    if left_out:
        names_text = ", ".join(sorted(left_out))
        log.warning(
            "plugins of kube-scheduler that are not built here, and left out: %s", names_text
        )
    return plugins


def _expanded(
    point: str,
    point_set: PluginSet,
    multi: Sequence[tuple[str, int]],
    plugins: Mapping[str, Plugin],
    title: str,
) -> list[str]:
    """Return the plug-ins of a point in order.

    First the multiPoint plug-ins named by the point, in the point's order, then the other ones of
    multiPoint, then the other ones of the point.
    """
    point_names = [name for name, _ in point_set.enabled if name in plugins]
    for name in point_names:
        if not joins(plugins[name], point):
            raise SettingsError(f'{title}: plugin "{name}" does not extend {point} plugin')
    if "*" in point_set.disabled:
        return point_names
    several = [
        name
        for name, _ in multi
        if name in plugins and joins(plugins[name], point) and name not in point_set.disabled
    ]
    again = [name for name in point_names if name in several]
    return [
        *again,
        *(name for name in several if name not in point_names),
        *(name for name in point_names if name not in again),
    ]
