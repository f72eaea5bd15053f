"""Bugs about limits of memory above the requests."""

from dataclasses import replace
from typing import Any

from gpushare.core.model import Request
from gpushare.device_plugin import container, identity
from gpushare.wire import device_request
from tests.simulation.mutants.museum import mutant

_CORE = "tests/unit/core/test_memory_limits.py::"
_PLUGIN = "tests/unit/device_plugin/test_"


@mutant("C21", "the books charge the limit", Request, "charges_on",
        test=f"{_CORE}test_the_limit_is_distributed_like_the_units")  # fmt: skip
def charges_the_limit(original: Any) -> Any:
    def charges(self: Any, shares: Any, capacity: Any) -> Any:
        factor = max(self.memory_limit, self.total) / self.total
        charged = original(self, shares, capacity)
        return tuple((device, int(units * factor)) for device, units in charged)

    return charges


@mutant("C21", "a pod with a limit comes to nodes that hold none", device_request, "_memory_limit",
        test="tests/unit/wire/test_pods.py::"
        "test_a_limit_that_makes_no_sense_is_refused_with_what_to_write")  # fmt: skip
def asks_for_no_label(original: Any) -> Any:
    def limit(sums: Any, text: Any, node_selector: Any, names: Any) -> Any:
        del node_selector
        return original(sums, text, {device_request.LIMITS_LABEL: "true"}, names)

    return limit


@mutant("C21", "a program is promised a limit that nothing holds", container, "_is_limited",
        test=f"{_PLUGIN}container.py::"
        "test_a_limit_above_the_request_is_refused_where_nothing_holds_it")  # fmt: skip
def takes_every_isolation_for_a_limit(original: Any) -> Any:
    del original
    return lambda grant, contract: True


@mutant("C21", "a container has the limit of one that looks the same", identity, "granted",
        test=f"{_PLUGIN}identity.py::"
        "test_of_containers_that_cannot_be_told_apart_none_has_the_others_limit")  # fmt: skip
def gives_the_largest_limit(original: Any) -> Any:
    def granted(candidate: Any, cards: Any, *, healthy: bool = True) -> Any:
        grant = original(candidate, cards, healthy=healthy)
        return grant if isinstance(grant, str) else replace(grant, memory_limit=8)

    return granted
