"""Costs of facts from outside before bounds existed; each mutant is found by a test of its own.

Of the objects of tenants, of node reports, of files, and of rights.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import yaml

from gpushare.core.policies.shadow_price import policy as shadow_price
from gpushare.core.workload_estimator import WINDOW, WorkloadEstimator
from gpushare.doctor import objects
from gpushare.extender import scheduler_file
from gpushare.extender.follow import group_members
from gpushare.extender.follow.group_members import GroupMembers
from gpushare.extender.managed_resources import ExtenderScope, ManagedResource
from gpushare.extender.verbs.holds import Holds
from gpushare.kube.responses import LineSplitter
from gpushare.trace import nodes_and_pods
from gpushare.wire import budgets, demands, events, pods
from gpushare.wire.annotations import LARGEST_ANNOTATIONS
from gpushare.yamlfile import BoundedLoader
from tests.simulation.mutants.museum import mutant

_UNIT = "tests/unit"
_LABELS = (
    f"{_UNIT}/wire/test_pods.py::"
    "test_of_many_labels_the_first_are_kept_and_an_assume_time_that_is_none_is_cut"
)
_HUGE = 10**9


# -- reading and keeping ------------------------------------------------------------------------


@mutant("T11", "a line of a watch may be as long as it likes", LineSplitter, "_hold",
        test=f"{_UNIT}/kube/test_line_splitter.py::"
        "test_a_line_without_end_does_not_fill_the_memory")  # fmt: skip
def reads_lines_without_end(original: Any) -> Any:
    del original
    return lambda self, part: self._parts.append(part)


@mutant("T12", "all labels of a pod are kept", pods, "_labels",
        test=_LABELS)  # fmt: skip
def keeps_all_labels(original: Any) -> Any:
    del original
    return lambda metadata: tuple(sorted((metadata.labels or {}).items()))


@mutant("T12", "an assume time of any length is kept", pods, "_MAX_STAMP",
        test=_LABELS)  # fmt: skip
def keeps_any_assume_time(original: Any) -> Any:
    return original * _HUGE


@mutant("T12", "a selector of a budget is kept whatever its size", budgets, "read_budget",
        test=f"{_UNIT}/wire/test_budgets.py::"
        "test_a_selector_that_is_too_large_to_be_kept_covers_all_of_its_namespace")  # fmt: skip
def keeps_any_selector(original: Any) -> Any:
    def read_budget(namespace: str, spec: Any, status: Any) -> Any:
        selector = spec.get("selector") if isinstance(spec, dict) else None
        return replace(original(namespace, spec, status), selector=selector)

    return read_budget


@mutant("T12", "what a pod demands of nodes is kept whatever its size", demands, "_size",
        test=f"{_UNIT}/wire/test_demands.py::"
        "test_of_a_pod_that_demands_very_much_nothing_is_known")  # fmt: skip
def keeps_any_demand(original: Any) -> Any:
    del original
    return lambda *of: 0


@mutant("T12", "all labels of a node are kept", demands, "_labels",
        test=f"{_UNIT}/wire/test_demands.py::"
        "test_what_is_too_much_to_keep_is_not_judged")  # fmt: skip
def keeps_all_labels_of_nodes(original: Any) -> Any:
    del original
    return dict


@mutant("T12", "a group has as many kinds of pods as a tenant likes", GroupMembers, "needs",
        test=f"{_UNIT}/extender/follow/test_group_members.py::"
        "test_the_kinds_that_are_looked_at_are_bounded_whatever_a_tenant_writes")  # fmt: skip
def looks_at_every_kind(original: Any) -> Any:
    return _without_bound(original, group_members, "MOST_KINDS")


# -- reports of nodes ----------------------------------------------------------------------------


@mutant("T13", "prices are made in a request, for the sizes that nodes bring",
        shadow_price._Prices,  # noqa: SLF001 -- it has no other name
        "__init__",
        test=f"{_UNIT}/core/test_card_sizes.py::"
        "test_nothing_is_made_in_a_request_for_the_sizes_that_a_node_brings")  # fmt: skip
def prices_in_the_request(original: Any) -> Any:
    def init(self: Any, classes: Any, devices: Any, shapes: Any) -> None:
        original(self, classes, devices, shapes)
        self._devices = {}

    return init


@mutant("T14", "scales are taken from all cards, the largest too", shadow_price, "common_nodes",
        test=f"{_UNIT}/core/test_card_sizes.py::"
        "test_a_node_that_stands_apart_leaves_the_others_their_differences")  # fmt: skip
def scales_by_the_largest_card(original: Any) -> Any:
    def common_nodes(snapshot: Any, sizes: Any) -> Any:
        del sizes
        return original(snapshot, set(snapshot.capacity[snapshot.capacity > 0].tolist()))

    return common_nodes


# -- expected pods -------------------------------------------------------------------------------


@mutant("T15", "a namespace counts for what it creates", WorkloadEstimator, "_weighted",
        test=f"{_UNIT}/core/test_workload_estimator.py::"
        "test_a_namespace_counts_for_what_it_holds_and_not_for_what_it_creates")  # fmt: skip
def counts_what_is_created(original: Any) -> Any:
    def weighted(self: Any) -> Any:
        weighted_mixtures = original(self)
        return [(sum(counts.values()), mixture, counts) for _, mixture, counts in weighted_mixtures]

    return weighted


@mutant("T15", "each namespace has the whole window", WorkloadEstimator, "_window",
        test=f"{_UNIT}/core/test_workload_estimator.py::"
        "test_how_many_pods_are_remembered_is_shared_by_the_namespaces")  # fmt: skip
def remembers_as_much_of_each(original: Any) -> Any:
    del original
    return lambda self: WINDOW


# -- writing -------------------------------------------------------------------------------------


@mutant("T16", "annotations that are written later are not counted", pods, "lacks_room",
        test=f"{_UNIT}/extender/test_service.py::"
        "test_a_request_that_makes_no_sense_is_refused_everywhere_for_good")  # fmt: skip
def leaves_no_room_for_ours(original: Any) -> Any:
    def lacks_room(pod: Any, request: Any, names: Any) -> Any:
        theirs = sum(len(text) for pair in pod.metadata.annotations.items() for text in pair)
        too_large = theirs > LARGEST_ANNOTATIONS
        return original(pod, request, names) if too_large else ""

    return lacks_room


@mutant("T16", "a note of an event has any length", events, "_cut",
        test=f"{_UNIT}/wire/test_events.py::"
        "test_a_note_has_at_most_1024_bytes_and_shows_that_it_was_cut")  # fmt: skip
def writes_notes_of_any_length(original: Any) -> Any:
    del original
    return lambda text, limit: text


# -- files ---------------------------------------------------------------------------------------


@mutant("T17", "aliases of YAML stand for any number of values, in any depth", BoundedLoader,
        "compose_node",
        test=f"{_UNIT}/test_yamlfile.py::"
        "test_what_stands_for_more_than_it_is_gets_refused")  # fmt: skip
def follows_every_alias(original: Any) -> Any:
    del original
    return yaml.SafeLoader.compose_node


@mutant("T17", "a small file is unpacked to any size", nodes_and_pods, "_text",
        test=f"{_UNIT}/trace/test_nodes_and_pods.py::"
        "test_a_small_file_that_unpacks_to_more_than_the_bound_is_refused")  # fmt: skip
def unpacks_to_any_size(original: Any) -> Any:
    return _without_bound(original, nodes_and_pods, "_MAX_BYTES")


# -- rights --------------------------------------------------------------------------------------


@mutant("T18", "pods of any namespace tell of the control plane", objects, "_is_of_control_plane",
        test=f"{_UNIT}/doctor/test_parts.py::"
        "test_pods_tell_of_schedulers_originals_and_amounts")  # fmt: skip
def believes_any_namespace(original: Any) -> Any:
    del original
    return lambda pod: True


@mutant("T18", "a static pod of any node tells of the control plane", objects, "_MIRROR",
        test=f"{_UNIT}/doctor/test_parts.py::"
        "test_a_static_pod_tells_of_the_control_plane_from_its_nodes_alone")  # fmt: skip
def believes_any_nodes_static_pod(original: Any) -> Any:
    return f"{original}-of-nobody"


@mutant("T19", "a pod chooses any policy, whatever it costs others", ManagedResource, "ranking",
        test=f"{_UNIT}/extender/test_service.py::"
        "test_a_pod_chooses_only_among_the_policies_that_the_operator_allows")  # fmt: skip
def lets_pods_choose_any_policy(original: Any) -> Any:
    def ranking(self: Any, request: Any) -> Any:
        allowed_policies, self.pod_policies = self.pod_policies, None
        try:
            return original(self, request)
        finally:
            self.pod_policies = allowed_policies

    return ranking


@mutant("T20", "without kube-scheduler's file every pod is bound", scheduler_file,
        "read_scheduler_file",
        test=f"{_UNIT}/extender/test_scheduler_file.py::"
        "test_without_a_file_everything_is_as_documented")  # fmt: skip
def serves_all_without_a_file(original: Any) -> Any:
    def read(path: str, *of: Any) -> Any:
        file_settings = original(path, *of)
        if path:
            return file_settings
        return replace(
            file_settings, entry=replace(file_settings.entry, managed_resources=()), schedulers=()
        )

    return read


@mutant("T20", "a pod without GPU is bound for whoever calls", ExtenderScope, "refusal",
        test=f"{_UNIT}/extender/verbs/bind/test_bind_tickets.py::"
        "test_a_pod_that_names_none_of_our_resources_is_not_bound")  # fmt: skip
def binds_pods_without_gpu(original: Any) -> Any:
    return lambda self, pod, **told: original(replace(self, managed=frozenset()), pod, **told)


@mutant("T21", "what filter has offered again and again is held from others for ever", Holds,
        "outwaited",
        test=f"{_UNIT}/extender/verbs/test_offers.py::"
        "test_pods_that_nobody_binds_keep_another_out_no_longer_than_a_hold_lasts")  # fmt: skip
def holds_for_ever(original: Any) -> Any:
    del original
    return lambda self, pod, now: ()


def _without_bound(original: Any, home: Any, constant: str) -> Callable[..., Any]:
    """The function with a huge constant instead."""

    def boundless(*of: Any, **kwargs: Any) -> Any:
        with patch.object(home, constant, _HUGE):
            return original(*of, **kwargs)

    return boundless
