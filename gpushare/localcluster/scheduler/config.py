"""What the scheduler takes from its configuration file, in the terms it works with.

Knows the decoded file (`gpushare.wire.scheduler.config`) and which parts of it this small scheduler
supports; a part that it would silently get wrong is refused.
"""

from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import ExtenderConfig, SchedulerConfig


@dataclass(frozen=True)
class SchedulerOptions:
    """Options of one scheduler. Backoffs in seconds; `seed` makes the breaking of ties repeatable.

    `percentage` is percentageOfNodesToScore, 0 for adaptive. `empty_candidates`: see Preemption.
    """

    extenders: tuple[ExtenderConfig, ...] = ()
    scheduler_names: frozenset[str] = frozenset({"default-scheduler"})
    percentage: int = 0
    initial_backoff: float = 1.0
    max_backoff: float = 10.0
    seed: int | None = None
    empty_candidates: bool = True

    @property
    def ignored_resources(self) -> frozenset[str]:
        """Resources that only an extender counts (managedResources with ignoredByScheduler)."""
        return frozenset(
            item.name
            for extender in self.extenders
            for item in extender.managed_resources
            if item.ignored_by_scheduler
        )


def options_from(config: SchedulerConfig, *, seed: int | None = None) -> SchedulerOptions:
    """Return the options a configuration file stands for. Raises SettingsError for what is
    unsupported.
    """
    for extender in config.extenders:
        if extender.enable_https or not extender.url_prefix.startswith("http://"):
            raise SettingsError(f"{extender.url_prefix}: extenders are called by plain http only")
    return SchedulerOptions(
        extenders=config.extenders,
        scheduler_names=frozenset(config.scheduler_names),
        percentage=config.percentage_of_nodes_to_score,
        initial_backoff=config.pod_initial_backoff,
        max_backoff=config.pod_max_backoff,
        seed=seed,
    )
