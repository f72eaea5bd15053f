"""Bugs that let one tenant, or one node, cost the others: the behaviour before bounds."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from gpushare.core import card_sizes
from gpushare.core.model import ObservedPod
from gpushare.core.states import records
from gpushare.core.states.entry import Entry
from gpushare.daemon.events import FairQueue
from gpushare.explain import text
from gpushare.extender.follow import watch_handlers
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.managed_resources import ExtenderScope
from gpushare.extender.tell.events import messages, overdue_pods
from gpushare.extender.tell.events.mistaken_pods import MistakenPods
from gpushare.kube.listwatch import ListWatch
from gpushare.wire import inventory, pods
from tests.simulation.mutants.museum import mutant

_EVENTS = "tests/unit/extender/tell/events"


@mutant("T1", "ours, once: annotations of any size are bound, and more are written", pods,
        "lacks_room")  # fmt: skip
def binds_beyond_the_room(original: Any) -> Any:
    del original
    return lambda *_: ""


@mutant("T2", "who creates a pod chooses how long it counts as about to be gone", Entry,
        "ends_soon",
        test="tests/unit/core/preemption/test_preemptor.py::"
        "test_an_ending_pod_frees_its_device_within_a_grace_that_one_can_wait_for")  # fmt: skip
def believes_any_grace(original: Any) -> Any:
    del original
    return lambda self, now: self.terminating


@mutant("T3", "ours, once: pods with gates count among those that come", records, "observed")
def counts_the_gated(original: Any) -> Any:
    def observed(record: Any, pod: ObservedPod) -> Any:
        return original(record, pod._replace(gated=False))

    return observed


@mutant("T4", "pods of a scheduler that does not call us count", ExtenderScope, "refusal")
def serves_every_scheduler(original: Any) -> Any:
    del original
    return lambda self, pod, **_: ""


@mutant("T4", "a pod that nobody schedules here counts among those that come",
        watch_handlers, "scheduler_of")  # fmt: skip
def counts_every_schedulers_pods(original: Any) -> Any:
    del original
    return lambda pod: "default-scheduler"


@mutant("T5", "an inventory of any number of sizes is taken", inventory, "MAX_SIZES")
def takes_any_inventory(original: Any) -> Any:
    return original * 1000


@mutant("T5", "the sizes that one node has are everybody's", card_sizes, "common_sizes",
        test="tests/unit/core/test_card_sizes.py::"
        "test_sizes_of_several_nodes_count_and_one_nodes_own_do_not")  # fmt: skip
def believes_a_liars_sizes(original: Any) -> Any:
    del original

    def common_sizes(capacity: Any) -> dict[int, int]:
        sizes, counts = np.unique(capacity[capacity > 0], return_counts=True)
        return dict(zip(sizes.tolist(), counts.tolist(), strict=True))

    return common_sizes


@mutant("T6", "events of all namespaces stand in one queue", FairQueue, "put",
        test="tests/unit/daemon/events/test_fair_queue.py")  # fmt: skip
def has_one_queue(original: Any) -> Any:
    def put(self: Any, namespace: str, event: Any) -> Any:
        del namespace
        return original(self, "", event)

    return put


@mutant("T6", "events of any number wait", FairQueue, "put",
        test="tests/unit/daemon/events/test_fair_queue.py")  # fmt: skip
def queues_without_end(original: Any) -> Any:
    del original

    def put(self: Any, namespace: str, event: Any) -> bool:
        self._turns.put(namespace, event)
        return True

    return put


@mutant("T6", "one namespace uses up the events of all about pods that fit nowhere",
        messages.NoFitLimiter, "allows",
        test=f"{_EVENTS}/test_messages.py::"
        "test_pods_of_one_namespace_do_not_keep_those_of_another_from_being_told")  # fmt: skip
def limits_all_together(original: Any) -> Any:
    def allows(self: Any, namespace: str, *of: Any) -> Any:
        del namespace
        return original(self, "", *of)

    return allows


@mutant("T7", "pods of one namespace take all looks", overdue_pods, "_MAX_OF_ONE",
        test=f"{_EVENTS}/test_pending_without_call.py::"
        "test_pods_of_one_namespace_hide_none_of_another")  # fmt: skip
def looks_at_one_namespace(original: Any) -> Any:
    return original * 1000


@mutant("T8", "mistakes are told one after the other, whoever made them", MistakenPods, "take",
        test=f"{_EVENTS}/test_mistaken_pods.py::"
        "test_many_mistakes_of_one_namespace_hold_up_none_of_another")  # fmt: skip
def tells_mistakes_in_turn(original: Any) -> Any:
    del original

    def take(self: Any) -> Any:
        now = self._clock()
        for uid, entry in self._mistakes.items():
            if entry.due <= now:
                self._mistakes[uid] = replace(entry, due=float("inf"))
                return entry.mistake.ref, entry.mistake.text
        return None

    return take


@mutant("T8", "mistakes of one namespace make room for its own alone", MistakenPods, "_drop_one",
        test=f"{_EVENTS}/test_mistaken_pods.py::"
        "test_a_namespace_of_many_mistakes_makes_room_for_anothers")  # fmt: skip
def drops_others_mistakes(original: Any) -> Any:
    del original

    def drop(self: Any) -> None:
        owners = Counter(entry.mistake.ref.namespace for entry in self._mistakes.values())
        (fewest, _) = owners.most_common()[-1]
        uids = [
            uid
            for uid, mistake in self._mistakes.items()
            if mistake.mistake.ref.namespace == fewest
        ]
        del self._mistakes[uids[0]]

    return drop


@mutant("T9", "a page of a list has as many objects as are asked for, whatever their size",
        ListWatch, "on_error",
        test="tests/unit/kube/test_listwatch.py::test_a_page_of_too_many_bytes_is_asked_for"
        "_again_at_once_with_half_as_many_objects")  # fmt: skip
def asks_for_as_many_again(original: Any) -> Any:
    def on_error(self: Any, error: Any, now: float) -> None:
        limit = self._limit
        original(self, error, now)
        self._limit = limit

    return on_error


@mutant("T9", "whole pages are kept until the list is whole", PodEventHandler, "trim",
        test="tests/unit/extender/follow/test_watch_handlers.py::"
        "test_of_a_page_of_large_pods_little_is_kept_until_the_list_is_whole")  # fmt: skip
def keeps_whole_pages(original: Any) -> Any:
    del original
    return lambda self, page: page


@mutant("T10", "an event names pods of other namespaces", text, "_name",
        test="tests/unit/extender/test_texts_for_tenants.py")  # fmt: skip
def names_everybody(original: Any) -> Any:
    return lambda entry, reader: original(entry, None)
