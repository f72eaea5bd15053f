"""The setting of a story's world, and the likely events there.

Which of all the things that may happen are likely differs from story to story, so that some
stories are all crashes and others have none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from gpushare.core.pairing import Pairing
from gpushare.extender.follow.auditor import AUDIT_INTERVAL
from tests.simulation.chance import Weighted
from tests.simulation.replica import ReplicaShape

WEIGHTS = {
    "answer": 96, "apply": 20, "deliver": 32, "fault": 24, "show": 80, "late": 24,
    "schedule": 56, "bind": 72, "bind_again": 12, "strange": 6,
    "admit": 40, "start": 32, "stop": 24, "finish": 20,
    "create": 32, "forge": 4, "delete": 12, "force": 8, "edit": 4, "other_binds": 4,
    "node": 8, "plugin": 1, "collect": 4, "close": 4,
    "wait": 40, "linger": 6, "sit_out": 1,
    "cut": 4, "end": 4, "bad_line": 4, "error_event": 4, "again": 4, "blind": 2, "bookmark": 2,
    "compact": 4, "relist": 4, "sink": 3,
    "crash": 4, "freeze": 2, "thaw": 8, "pause": 6, "lease": 4, "fail_over": 4,
    "retire": 4, "meddle": 2, "resize": 4, "flap": 8,
    "shake": 8, "say": 8, "hush": 4,
    "tenant": 24, "lie": 8,
}  # fmt: skip
FAULTS = {
    "fault", "late", "cut", "end", "bad_line", "error_event", "again", "blind", "compact", "sink",
    "crash", "freeze", "pause", "lease", "fail_over", "node", "close", "forge", "edit", "force",
    "other_binds", "linger", "sit_out", "relist", "strange", "collect",
    "plugin", "retire", "meddle", "resize", "flap",
    "shake", "hush", "tenant", "lie",
}  # fmt: skip
_LATER = ("plugin", "retire", "meddle", "resize", "flap", "shake", "hush")
"""Faults added later: drawn last, so that most older seeds keep their setting."""
_HOSTILE = ("tenant", "lie")
"""The actions of attackers, in one story of four: drawn last of all."""
_WITH_CORES = 1 / 3
"""Of stories, in how many pods ask for compute too."""
_WITH_SHARES, _WITH_SHARERS = 1 / 4, 1 / 4
"""Of stories, in how many pods ask for a percentage of memory; in how many nodes limit sharers."""
_FACTORS = (0, 0, 0, 1, 1, 3)
_BEGINS = ("create", "schedule", "bind", "admit")
_ENDS = ("delete", "finish", "force")
_STOPS = ("crash", "freeze", "pause")


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of a story's world; all of it comes from the story's first number.

    small: pods ask for little. pods: how many there may be at a time. ours: our own device plug-in
    is on every node that can have it. hostile: a tenant and a node attack. preempts: some pods
    are more urgent than others, and some do not end when told to. cores: pods may ask for
    compute beside memory. shares: pods may ask for a percentage of memory. sharers: nodes may have
    the most pods of a device.
    """

    shape: ReplicaShape
    replicas: int
    small: bool
    weights: Weighted
    pods: int
    ours: bool
    hostile: bool
    preempts: bool
    cores: bool
    shares: bool
    sharers: bool

    @staticmethod
    def of(number: int) -> "Setting":
        """The setting that the number means."""
        source = Random(number)
        leadership = source.choice(("lease", "lease", "scheduler", "off"))
        shape = ReplicaShape(
            source.choice((Pairing.AUTO, Pairing.AUTO, Pairing.ON, Pairing.OFF)),
            leadership,
            source.choice(("device-bestfit", "binpack", "spread")),
            source.choice((False, False, False, True)),
            source.choice((False, False, True)),
            source.choice((500, 500, 2)),
        )
        replicas = 1 if leadership == "off" else source.choice((1, 2, 2))
        factors = {
            name: source.choice(_FACTORS) for name in sorted(FAULTS.difference(_LATER, _HOSTILE))
        }
        weights = {name: weight * factors.get(name, 1) for name, weight in WEIGHTS.items()}
        small = source.choice((True, True, False))
        shape = replace(shape, slow=source.choice((0.0, 0.0, 0.0, 0.02, 0.3)))
        shape = replace(shape, crowded=source.choice((0.0, 0.03)))
        # Pods that live long fill the nodes; pods that come and go try identities.
        ends = source.choice((1, 1, 1, 1, 0, 4))
        _scale(weights, _ENDS, ends)
        if ends != 1:
            _scale(weights, _BEGINS, 2)
        if leadership == "scheduler":
            _scale(weights, ("fail_over",), source.choice((1, 4)))
        # Processes without faults learn facts that a restarted process does not have.
        _scale(weights, _STOPS, source.choice((1, 1, 1, 1, 1, 0)))
        for name in _LATER:
            _scale(weights, (name,), source.choice(_FACTORS))
        if leadership == "lease":
            replicas += source.choice((0, 0, 0, 1))
        shape = replace(
            shape, audit=source.choice((AUDIT_INTERVAL, AUDIT_INTERVAL, AUDIT_INTERVAL, 3.0))
        )
        if shape.audit < AUDIT_INTERVAL:
            # Objects that go and come in step with the lists look wrong to an audit.
            _scale(weights, ("flap",), 3)
        pods = 7 if ends == 1 else 12
        ours = source.choice((True, False, False, False))
        hostile = source.choice((False, True, False, False))
        _scale(weights, _HOSTILE, source.choice((1, 3)) if hostile else 0)
        if hostile:
            shape = replace(shape, scoped=source.choice((True, False)))
        preempts = source.choice((False, False, False, False, True, False))
        if preempts:
            pods = 12  # Where there is room nobody has to go.
        # Drawn apart, so that older stories do not change.
        cores = Random(f"compute of {number}").random() < _WITH_CORES
        shares = Random(f"percentages of {number}").random() < _WITH_SHARES
        sharers = Random(f"sharers of {number}").random() < _WITH_SHARERS
        return Setting(
            *(shape, replicas, small, Weighted(weights), pods, ours, hostile, preempts, cores),
            shares=shares,
            sharers=sharers,
        )


def _scale(weights: dict[str, int], names: Iterable[str], factor: int) -> None:
    """Make the events of this name more or less likely."""
    weights.update({name: weights[name] * factor for name in names})
