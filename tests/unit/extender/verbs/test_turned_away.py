"""Which pods were refused for holds, and where holds have ended since."""

import pytest

from gpushare.core.model import PodRef, Request
from gpushare.extender.verbs import holds as module
from gpushare.extender.verbs.holds import Holds
from gpushare.wire.groups import NO_GROUP, Group
from gpushare.wire.pods import Claimant

GANG, OTHER = Group("gang"), Group("other")


def claimant(name: str, group: Group = NO_GROUP) -> Claimant:
    return Claimant(PodRef("default", name, name), Request(10, 1), group=group)


P, Q, M = claimant("p"), claimant("q"), claimant("m", GANG)


@pytest.fixture
def holds() -> Holds:
    return Holds()


def turn_away(holds: Holds, *pods: Claimant) -> None:
    for pod in pods:
        holds.turned_away(pod, holds.version)


def end_one(holds: Holds, node: str, group: Group = NO_GROUP) -> None:
    """A hold on the node begins, and ends."""
    pod = claimant(f"held of {group.key}", group)
    holds.offered(pod, node, 0.0)
    holds.refused(pod)


def test_nothing_is_kept_while_no_pod_was_turned_away(holds: Holds) -> None:
    end_one(holds, "n")
    turn_away(holds, P)
    assert holds.take_ended() == ({}, {})


def test_what_ended_since_filter_looked_counts_as_ended_now(holds: Holds) -> None:
    before = holds.version
    end_one(holds, "n")
    holds.turned_away(P, before)
    assert holds.take_ended() == ({"p": P}, {"n": {""}})


def test_what_ends_comes_once_and_the_pods_stay(holds: Holds) -> None:
    turn_away(holds, P)
    end_one(holds, "n")
    end_one(holds, "n", GANG)
    assert holds.take_ended() == ({"p": P}, {"n": {"", "gang"}})
    assert holds.take_ended() == ({}, {})
    end_one(holds, "m")
    assert holds.take_ended().pods == {"p": P}


def test_a_pod_is_not_told_of_its_own_group(holds: Holds) -> None:
    turn_away(holds, M, P)
    end_one(holds, "n1", GANG)
    end_one(holds, "n2", GANG)
    end_one(holds, "n2", OTHER)
    ended = holds.take_ended()
    assert ended.nodes(M) == ["n2"]
    assert ended.nodes(P) == ["n1", "n2"]


def test_a_pod_that_is_asked_about_or_told_or_gone_is_forgotten(holds: Holds) -> None:
    woken_pod, ended_pod, bound_pod = map(claimant, ("told", "gone", "placed"))
    turn_away(holds, P, Q, M, woken_pod, ended_pod, bound_pod)
    holds.asked(P)
    holds.forget_turned_away(["told", "nobody"])
    holds.gone("gone")
    holds.gone("placed")
    end_one(holds, "n")
    assert list(holds.take_ended().pods) == ["q", "m"]


def test_a_pod_that_a_whole_list_does_not_show_is_forgotten(holds: Holds) -> None:
    turn_away(holds, P, Q)
    holds.keep(["q"])
    end_one(holds, "n")
    assert list(holds.take_ended().pods) == ["q"]


def test_it_does_not_grow_without_end(holds: Holds) -> None:
    upper_bound = module._MAX_TURNED_AWAY  # noqa: SLF001
    turn_away(holds, *(claimant(str(number)) for number in range(upper_bound + 3)))
    end_one(holds, "n")
    pods = holds.take_ended().pods
    assert len(pods) == upper_bound
    assert "0" not in pods
