"""`gpushare serve` with small bounds of the stores that fill for an hour in a cluster with churn.

So a soak of ten minutes shows whether memory stays level once they are full: what still grows is
kept by nothing that has a bound. Run by `python -m tests.simulation.soak --small-bounds`.
"""

from importlib import import_module

from gpushare.cli.main import main

BOUNDS = {
    "gpushare.core.ranking._KINDS": 16,
    "gpushare.core.ranking._MAX_KINDS": 16,
    "gpushare.core.workload_estimator.WINDOW": 200,
    "gpushare.daemon.events.WINDOW": 60.0,
    "gpushare.extender.tell.gpu_seconds.MOST_SERIES": 50,
    "gpushare.extender.tell.gpu_seconds._KEPT": 100,
    "gpushare.extender.tell.page.last_hour._HOUR": 60.0,
    "gpushare.extender.verbs.tickets.MAX_TICKETS": 100,
}
"""By module and name."""

if __name__ == "__main__":
    for path, bound in BOUNDS.items():
        module_name, _, name = path.rpartition(".")
        module = import_module(module_name)
        assert hasattr(module, name), path
        setattr(module, name, bound)
    main()
