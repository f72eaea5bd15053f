"""Checks of ResourceClaims: the device class, the driver's slices, the schedulers that allocate,
read rights, and objects of earlier releases, when the extender allocated claims.

Pure. There is no finding unless an extender ranks nodes for claims, or the device class or an
object of earlier releases exists.
"""

from collections import Counter
from collections.abc import Iterator

from gpushare.doctor.checks.server import missing_rights
from gpushare.doctor.facts import ApiServer, Facts, ListedClaims, ListedDriver, Right, Unread
from gpushare.doctor.facts import SchedulerFile as File
from gpushare.doctor.finding import Check, Finding, count, some
from gpushare.wire.metrics import family

LEAST_MINOR = 36
"""The first release that lets several claims share a device without a feature gate."""

CLASS = "gpushare.io"
SECOND_SCHEDULER = "gpushare-scheduler"

_APPLY = "kubectl apply -k config/extender/claims"
_GROUP = "resource.k8s.io"
CLAIMS_RIGHTS = tuple(
    Right(verb, resource, _GROUP)
    for resource in ("deviceclasses", "devicetaintrules", "resourceclaims", "resourceslices")
    for verb in ("list", "watch")
)
"""Rights that an extender needs to rank nodes for claims."""

_IN_THE_WAY = ("validatingadmissionpolic", "mutatingadmissionpolicies/gpushare-claims-pods")
"""Beginnings of the left-over objects that keep pods with claims pending."""


def check_claims(facts: Facts) -> Iterator[Finding]:
    """Yield findings about claims, if the cluster uses them."""
    samples = family(facts.samples, "gpushare_claims")
    driver = next((labels.get("driver", "") for labels, _ in samples), "")
    claims = facts.claims
    if isinstance(claims, Unread):
        if driver:
            yield claims.finding("claims-class")
        return
    if claims.left_over:
        yield _left_over(claims.left_over)
    if not driver and claims.selectors is None:
        return
    if claims.forbidden and not claims.left_over:
        text = f"this account may not list {some(claims.forbidden)}"
        yield Check("claims-left-over").skip(text, "run this as an administrator")
    if isinstance(facts.api, ApiServer) and 0 < facts.api.minor < LEAST_MINOR:
        yield Check("claims-version").warn(
            f"this is Kubernetes 1.{facts.api.minor}: before 1.{LEAST_MINOR} several claims share a"
            " device only behind a feature gate",
            f"update to 1.{LEAST_MINOR} or later",
        )
    else:
        yield Check("claims-version").ok(f"Kubernetes is 1.{LEAST_MINOR} or later")
    yield _class(claims)
    yield _slices(claims, driver)
    yield _schedulers(facts, claims, driver)
    yield _shared_nodes(facts, claims.drivers.get(driver, ListedDriver()))
    yield _rights(facts)


def _left_over(names: tuple[str, ...]) -> Finding:
    command = f"kubectl delete {' '.join(names)}"
    blocking = [name for name in names if name.startswith(_IN_THE_WAY)]
    if blocking:
        text = f"{some(blocking)}: from a release in which the extender allocated claims; it keeps"
        return Check("claims-left-over").fail(f"{text} pods with claims pending", command)
    text = "from a release in which the extender allocated claims; nothing uses it"
    return Check("claims-left-over").warn(f"{some(names)}: {text}", command)


def _class(claims: ListedClaims) -> Finding:
    if claims.selectors is None:
        if any(CLASS in claim.classes for claim in claims.claims.values()):
            text = f"there is no DeviceClass {CLASS}, and claims name it: their pods stay pending"
            return Check("claims-class").fail(text, _APPLY)
        return Check("claims-class").ok(
            f"no claim names the DeviceClass {CLASS}, and there is none"
        )
    if "false" in claims.selectors:
        return Check("claims-class").fail(
            f'the DeviceClass {CLASS} has the selector "false": kube-scheduler allocates no device'
            " of it",
            "kubectl replace -f config/extender/claims/device-class.yaml",
        )
    return Check("claims-class").ok(f"kube-scheduler allocates devices of the DeviceClass {CLASS}")


def _slices(claims: ListedClaims, driver: str) -> Finding:
    if not driver:
        return Check("claims-devices").skip("the extender names the driver", "give --extender")
    driver_slices = claims.drivers.get(driver)
    if driver_slices is None or not driver_slices.devices:
        other_drivers = f"; there are slices of {some(claims.drivers)}" if claims.drivers else ""
        return Check("claims-devices").fail(
            f"no ResourceSlice has a device of {driver}{other_drivers}",
            "look whether the driver's pods run on the nodes with GPUs, and at --claims",
        )
    devices = count(driver_slices.devices, "device")
    text = f"{devices} of {driver} on {count(len(driver_slices.nodes), 'node')}"
    return Check("claims-devices").ok(f"{text}; several claims may share {driver_slices.shared}")


def _schedulers(facts: Facts, claims: ListedClaims, driver: str) -> Finding:
    """Return whether one kube-scheduler allocates all claims of the driver."""
    name, todo = Check("claims-schedulers"), "have one kube-scheduler place all pods with claims"
    if isinstance(facts.pods, Unread):
        return name.skip("pods were not read")
    of_driver = [claim for claim in claims.claims.values() if driver in claim.drivers]
    classes = {CLASS}.union(*(claim.classes for claim in of_driver))
    pods: Counter[str] = Counter()
    elsewhere = []
    our_names = {SECOND_SCHEDULER}
    if isinstance(facts.scheduler, File):
        our_names = {*facts.scheduler.config.scheduler_names}
    for pod in facts.pods.claiming:
        pod_claims = [claims.claims[item] for item in pod.claims if item in claims.claims]
        if any(driver in claim.drivers or classes & claim.classes for claim in pod_claims):
            pods[pod.scheduler] += 1
        if pod.namespace in claims.namespaces and pod.scheduler not in our_names:
            elsewhere.append(pod.name)
    # Profiles of one file belong to one kube-scheduler, which has one allocator.
    processes = {"": pods.keys() & our_names} | {item: {item} for item in pods.keys() - our_names}
    if sum(map(bool, processes.values())) > 1:
        names = ", ".join(f"{scheduler} ({number})" for scheduler, number in sorted(pods.items()))
        return name.warn(
            f"pods with claims of {driver or CLASS} name {names}: kube-schedulers that allocate"
            " from the same slices can give a device out twice",
            todo,
        )
    if elsewhere:
        return name.warn(
            f"{count(len(elsewhere), 'pod')} with claims in labelled namespaces"
            f" {'names' if len(elsewhere) == 1 else 'name'} another scheduler: {some(elsewhere)}",
            todo,
        )
    return name.ok("one kube-scheduler places all pods with claims")


def _shared_nodes(facts: Facts, driver: ListedDriver) -> Finding:
    """Return which nodes a device plug-in of ours shares and the driver publishes too."""
    if isinstance(facts.nodes, Unread):
        return Check("claims-nodes").skip("nodes were not read")
    both = {node.name: node for node in facts.nodes if node.shares and node.name in driver.nodes}
    if not both:
        return Check("claims-nodes").ok(
            "no node has devices of both a device plug-in and the driver"
        )
    twice = [
        f"{uuid} on {name}"
        for name, node in both.items()
        for uuid in driver.nodes[name].intersection(filter(None, node.spec.uuids))
    ]
    todo = (
        "drain the node, then remove either its device plug-in and the annotation"
        f" {facts.names.inventory}, or the driver"
    )
    if twice:
        text = "a device plug-in and the driver both give out the device"
        return Check("claims-nodes").fail(f"{some(twice)}: {text}", todo)
    text = "devices of a device plug-in and of the driver: no new pod by annotation goes there"
    return Check("claims-nodes").warn(f"{some(both)}: {text}", todo)


def _rights(facts: Facts) -> Finding:
    if isinstance(facts.rights, Unread):
        return facts.rights.finding("claims-rights")
    lacking = [right for right in CLAIMS_RIGHTS if not facts.rights.get(right)]
    if lacking:
        return missing_rights(
            Check("claims-rights"), lacking, _APPLY, own_account=facts.own_account
        )
    return Check("claims-rights").ok("the account used here may read claims, slices and classes")
