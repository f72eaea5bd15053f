"""Checks of claims: the class, the fence, the driver's devices, the rights, and what lies unused.

Pure. Where there is neither the device class nor an extender that serves claims, nothing is said,
and without the class nothing else.

Tested in `tests/unit/doctor/test_claims.py`.
"""

from collections.abc import Iterator

from gpushare.doctor.facts import ApiServer, ClaimsSeen, DriverSeen, Facts, Right, Unread
from gpushare.doctor.finding import Finding, count, fail, ok, skip, some, warn
from gpushare.wire.dra.claims import CLASS, CLASS_ASIDE
from gpushare.wire.metrics import family, total

LEAST_MINOR = 36
"""The first release in which devices have capacity that several claims consume, by default."""

_LONG_UNUSED = 300.0
_APPLY = "kubectl apply -k config/extender/claims"

_GROUP = "resource.k8s.io"
CLAIMS_RIGHTS = (
    *(Right(verb, "resourceslices", _GROUP) for verb in ("list", "watch")),
    *(Right(verb, "deviceclasses", _GROUP) for verb in ("list", "watch")),
    *(Right(verb, "resourceclaims", _GROUP) for verb in ("list", "watch", "patch")),
    Right("patch", "resourceclaims/status", _GROUP),
    Right("patch", "resourceclaims/binding", _GROUP),
)
"""What an extender needs to give devices to claims."""

TEMPLATES = Right("create", "resourceclaimtemplates", _GROUP)
"""For pods that are rewritten: the template that such a pod names is written when it comes."""


def check_claims(facts: Facts) -> Iterator[Finding]:
    """Yield findings about claims, if they are used."""
    # The driver that the extender says it serves; "" if it serves none or was not asked.
    samples = family(facts.samples, "gpushare_claims")
    served = next((labels.get("driver", "") for labels, _ in samples), "")
    claims = facts.claims
    if isinstance(claims, Unread):
        # Whoever may not read it, where nobody uses it, need not hear of it.
        if served:
            yield claims.finding("claims-class")
        return
    if not claims.classes:
        if served:
            yield _class(claims, served)
        return
    fenced = {driver for fence in claims.fences for driver in fence.drivers}
    driver = served or (fenced.pop() if len(fenced) == 1 else "")
    if isinstance(facts.api, ApiServer) and 0 < facts.api.minor < LEAST_MINOR:
        yield fail(
            "claims-version",
            f"claims are for Kubernetes 1.{LEAST_MINOR} and later, and this is 1.{facts.api.minor}:"
            " what a claim consumes of a device is not kept there",
            f"update, or take --claims from the extender and the class {CLASS} away",
        )
    else:
        yield ok("claims-version", f"Kubernetes is not older than 1.{LEAST_MINOR}, as claims need")
    yield _class(claims, served)
    yield _fence(claims, driver)
    yield _devices(claims, driver)
    yield _two_worlds(facts, claims.drivers.get(driver, DriverSeen()))
    yield _rights(facts)
    now = facts.now_there
    long = [name for name, since in claims.unused if since and now - since > _LONG_UNUSED]
    if long:
        yield warn(
            "claims-unused",
            f"{some(long)}: has devices for more than {_LONG_UNUSED / 60:.0f} minutes, and no pod"
            " that they are reserved for",
            "delete the claim, if no pod is to come",
        )
    else:
        told = "each claim with devices has them for a pod, or since a moment"
        yield ok("claims-unused", told)


def served_alone(facts: Facts) -> bool:
    """Return whether the extender that was asked serves claims and nothing else."""
    return bool(total(facts.samples, "gpushare_claims_alone"))


def _class(claims: ClaimsSeen, served: str) -> Finding:
    if not claims.classes:
        return fail(
            "claims-class",
            f"the extender gives devices of {served} to claims of the class {CLASS}, and there is"
            " no such DeviceClass: none is ever asked for",
            _APPLY,
        )
    open_ones = [name for name, expressions in claims.classes.items() if expressions != ("false",)]
    if open_ones:
        return fail(
            "claims-class",
            f'the DeviceClass {some(open_ones)} has other selectors than "false", so kube-scheduler'
            " may give out devices by it, the first that fits",
            _APPLY,
        )
    if CLASS not in claims.classes:
        return ok(
            "claims-class",
            f"the DeviceClass is kept as {CLASS_ASIDE}: kube-scheduler looks at no node for a pod"
            " whose claim has no devices yet",
        )
    return ok("claims-class", f"the DeviceClass {CLASS} is there, and no device meets it by itself")


def _fence(claims: ClaimsSeen, driver: str) -> Finding:
    ours = [fence for fence in claims.fences if not driver or driver in fence.drivers]
    sound = [fence.name for fence in ours if not fence.gaps and fence.drivers]
    if sound:
        return ok("claims-fence", f"{some(sound)}: nobody else allocates devices of {driver}")
    if not ours:
        others = sorted({name for fence in claims.fences for name in fence.drivers})
        named = f" (there is one for {some(others)})" if others else ""
        return fail(
            "claims-fence",
            f"no ValidatingAdmissionPolicy keeps others from allocating devices of"
            f" {driver or 'the driver'}{named}: two that count each for himself give one card out"
            " twice",
            f"{_APPLY}, with the driver's name in fence.yaml",
        )
    fence = ours[0]
    why = " and ".join(fence.gaps) or "it names no driver"
    return fail(
        "claims-fence",
        f"{fence.name} does not keep others from allocating devices of {driver or 'the driver'}:"
        f" {why}",
        _APPLY,
    )


def _devices(claims: ClaimsSeen, driver: str) -> Finding:
    if not driver:
        return skip("claims-devices", "which driver is served is told by the extender (--extender)")
    seen = claims.drivers.get(driver)
    if seen is None:
        others = f"; there are those of {some(claims.drivers)}" if claims.drivers else ""
        return fail(
            "claims-devices",
            f"there is no ResourceSlice of {driver}{others}",
            "look whether its pods run on the nodes with GPUs, and at --claims",
        )
    unfit = ", ".join(f"{number} with {why}" for why, number in sorted(seen.unfit.items()))
    shared = sum(map(len, seen.nodes.values()))
    if not shared:
        return fail(
            "claims-devices",
            f"no device of {driver} can be shared: {unfit or 'its slices have none'}",
            "have the driver offer memory to be shared; NVIDIA's has the feature ConsumableShares",
        )
    what = (
        f"{count(shared, 'device')} of {driver} on {count(len(seen.nodes), 'node')} can be shared"
    )
    if unfit:
        return warn(
            "claims-devices",
            f"{what}; not so: {unfit}",
            "have the driver offer these too, if claims are to have them",
        )
    return ok("claims-devices", what)


def _two_worlds(facts: Facts, driver: DriverSeen) -> Finding:
    if isinstance(facts.nodes, Unread):
        return skip("claims-nodes", "which nodes share devices by annotation is told by the nodes")
    both = {node.name: node for node in facts.nodes if node.shares and node.name in driver.nodes}
    twice = [
        f"{uuid} on {name}"
        for name, node in both.items()
        for uuid in driver.nodes[name].intersection(filter(None, node.spec.uuids))
    ]
    todo = (
        "drain the node, then remove its device plug-in and what that has written there, or the"
        " driver"
    )
    if twice:
        what = f"{some(twice)}: the card is offered by a device plug-in and by a DRA driver"
        return fail("claims-nodes", f"{what}; nothing new is placed there", todo)
    if both:
        what = f"{some(both)}: devices by annotation and slices of the driver"
        return warn("claims-nodes", f"{what}; nothing new is placed there", todo)
    return ok("claims-nodes", "no node shares devices both by annotation and by slices")


def _rights(facts: Facts) -> Finding:
    if isinstance(facts.rights, Unread):
        return facts.rights.finding("claims-rights")
    rewritten = facts.known_pods.rewritten
    needed = (*CLAIMS_RIGHTS, *([TEMPLATES] if rewritten else ()))
    lacking = [str(right) for right in needed if not facts.rights.get(right)]
    if not lacking:
        return ok("claims-rights", "the account used here may do all that claims need")
    if facts.own_account:
        waits = (
            f": {some(rewritten)} may wait for a template of claims"
            if not facts.rights.get(TEMPLATES) and rewritten
            else ""
        )
        what = f"the extender's account may not {some(lacking)}{waits}"
        return fail("claims-rights", what, _APPLY)
    return warn(
        "claims-rights",
        f"the account used here may not {some(lacking)}; whether the extender's may is not known",
        "run this as the extender: in its pod, or with its kubeconfig and --as-extender",
    )
