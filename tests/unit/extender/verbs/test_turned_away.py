"""Which pods were refused for holds, and where holds have ended since."""

from gpushare.core.model import PodRef, Request
from gpushare.extender.verbs import turned_away
from gpushare.extender.verbs.claimant import Claimant
from gpushare.extender.verbs.turned_away import TurnedAway
from gpushare.wire.groups import NO_GROUP, Group


def claimant(name: str, group: Group = NO_GROUP) -> Claimant:
    return Claimant(PodRef("default", name, name), Request(10, 1), group=group)


P, Q, M = claimant("p"), claimant("q"), claimant("m", Group("gang"))


def test_nothing_is_kept_while_no_pod_was_turned_away() -> None:
    away = TurnedAway()
    away.ended("n")
    away.put(P)
    assert away.take() == ({}, {})


def test_what_ends_comes_once_and_the_pods_stay() -> None:
    away = TurnedAway()
    away.put(P)
    away.ended("n")
    away.ended("n", "gang")
    assert away.take() == ({"p": P}, {"n": {"", "gang"}})
    assert away.take() == ({}, {})
    away.ended("m")
    assert away.take().pods == {"p": P}


def test_a_pod_is_not_told_of_its_own_group() -> None:
    away = TurnedAway()
    away.put(M)
    away.put(P)
    away.ended("n1", "gang")
    away.ended("n2", "gang")
    away.ended("n2", "other")
    ended = away.take()
    assert ended.nodes(M) == ["n2"]
    assert ended.nodes(P) == ["n1", "n2"]


def test_a_pod_that_is_removed_or_not_kept_is_forgotten() -> None:
    away = TurnedAway()
    for pod in (P, Q, M):
        away.put(pod)
    away.remove("p")
    away.keep(["q"])
    away.ended("n")
    assert list(away.take().pods) == ["q"]
    away.remove("nobody")


def test_it_does_not_grow_without_end() -> None:
    away = TurnedAway()
    for number in range(turned_away._MOST_PODS + 3):  # noqa: SLF001
        away.put(claimant(str(number)))
    away.ended("n")
    assert len(away.take().pods) == turned_away._MOST_PODS  # noqa: SLF001
    assert "0" not in away
