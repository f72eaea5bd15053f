"""Bugs of our device plug-in: the turn of pods, the cards, and the environment of a container.

C3, C4, C5 and C7 concern reading GPUs, which no story has; ours reads no assume time (C13).
"""

from dataclasses import replace
from typing import Any

from gpushare.device_plugin import container, identity, node_pod, start_check
from gpushare.device_plugin.allocator import Allocator, CandidateFinder, Candidates
from gpushare.device_plugin.start_check import StartCheck
from tests.simulation.mutants.museum import Patch, mutant


def _starts_anything(original: Any) -> Any:
    del original
    return lambda self, ids: None


def _reads_nothing_anew(original: Any) -> Any:
    del original
    return lambda self, found: None


UNCHECKED: tuple[Patch, ...] = ((StartCheck, "check", _starts_anything),)
"""Who takes one pod for another is caught where the container starts; but for the checks there."""


@mutant("C8", "the original takes the first pod of that size", identity, "decide", UNCHECKED)
def takes_the_first_of_that_size(original: Any) -> Any:
    return lambda found, *of: original(found[:1], *of)


@mutant("C8", "volcano-vgpu #93: the kubelet is not asked whom it admits", CandidateFinder, "find")
def asks_nobody_who_is_admitted(original: Any) -> Any:
    del original

    def find(self: Any, *of: Any) -> Any:
        pods = self.unlisted(*of)
        return Candidates(pods.candidates[:1], True, pods.changes)

    return find


@mutant(
    "C8",
    "a pod that has come again is taken for the one before",
    identity,
    "may_be_another",
    ((CandidateFinder, "read_again", _reads_nothing_anew),),
    test="tests/unit/device_plugin/test_allocator.py::"
    "test_a_pod_that_came_again_is_not_given_the_device_of_the_former",
)
def takes_a_new_pod_for_the_old(original: Any) -> Any:
    del original
    return lambda *of: False


@mutant("C8", "the kubelet's record has other cards", identity, "choose_ids")
def prefers_any_ids(original: Any) -> Any:
    del original

    def choose(grant: Any, available: Any, must_include: Any, in_use: Any) -> Any:
        free = [device_id for device_id in sorted(available) if device_id not in must_include]
        return (*must_include, *free)[: grant.units], True

    return choose


@mutant("C9", "the original holds a container against the sum of its pod", node_pod, "_placed")
def gives_each_container_the_whole_pod(original: Any) -> Any:
    def placed(pod: Any, shares: Any, *of: Any) -> Any:
        return tuple(replace(part, shares=shares) for part in original(pod, shares, *of))

    return placed


@mutant("C10", "the original knows no init containers", node_pod, "_gpu_containers")
def knows_no_init_containers(original: Any) -> Any:
    return lambda *of: ((index, part) for index, part in original(*of) if index >= 0)


@mutant("C11", "the original answers with a device that there is not", container, "_original")
def tells_of_no_device(original: Any) -> Any:
    none = {container.VISIBLE: "no-gpu-has-4MiB-to-run"}
    return lambda *of: original(*of) | none


@mutant("C12", "the original marks nothing on a node of one device", Allocator, "complete")
def marks_nothing_where_there_is_one_card(original: Any) -> Any:
    def complete(self: Any, pod: Any) -> Any:
        return len(self.cards().all) > 1 and original(self, pod)

    return complete


@mutant("C6", "health is read when the pod is bound, and not again", identity, "granted")
def gives_a_sick_card(original: Any) -> Any:
    return lambda candidate, cards, **_: original(candidate, cards, healthy=False)


def _by_index(original: Any) -> Any:
    def granted(candidate: Any, *of: Any, **how: Any) -> Any:
        nameless = replace(candidate, pod=replace(candidate.pod, uuids={}))
        return original(nameless, *of, **how)

    return granted


@mutant(
    "C16",
    "every plug-in but ours: the index is the device",
    identity,
    "granted",
    ((start_check, "granted", _by_index),),
)
def gives_what_is_at_the_index(original: Any) -> Any:
    return _by_index(original)
