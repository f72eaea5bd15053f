"""The options of the scheduler, from its configuration file.

Knows the decoded file (`gpushare.wire.scheduler.config`) and the supported parts of it; an
unsupported part that matters is refused.
"""

from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import ExtenderConfig, SchedulerConfig
from gpushare.wire.scheduler.profiles import Profile


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
