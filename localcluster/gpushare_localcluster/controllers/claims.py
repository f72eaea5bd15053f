"""ResourceClaims: created from templates, and freed after the last pod.

Facts: k8s.io/kubernetes pkg/controller/resourceclaim. Claims are not reserved for pods bound by
other schedulers.
"""

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import (
    RETRY,
    Cluster,
    controller_of,
    deleting,
    name,
    phase,
)

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim from a template: the name of the claim in the pod."""

_ENDED = ("Succeeded", "Failed")


def claims_of(pod: Json) -> list[str]:
    """Return the names of the pod's claims, "" for a claim that is not created yet."""
    names = {claim["name"]: claim.get("resourceClaimName") for claim in _statuses(pod)}
    return [
        str(claim.get("resourceClaimName") or names.get(claim["name"]) or "")
        for claim in pod["spec"].get("resourceClaims") or ()
    ]


def make(cluster: Cluster, pod: Json) -> float | None:
    """Create the claims that the pod has by templates; return the seconds until the next step."""
    if deleting(pod) or phase(pod) in _ENDED:
        return None
    statuses = _statuses(pod)
    claim_names = {status["name"] for status in statuses}
    for pod_claim in pod["spec"].get("resourceClaims") or ():
        template = pod_claim.get("resourceClaimTemplateName")
        if not template or pod_claim["name"] in claim_names:
            continue
        claim = _made(cluster, pod, pod_claim["name"])
        if claim is None:
            claim_template = cluster.get(
                "ResourceClaimTemplate", pod["metadata"]["namespace"], template
            )
            if claim_template is None:
                message = f'resourceclaimtemplate.resource.k8s.io "{template}" not found'
                cluster.tell(pod, "FailedResourceClaimCreation", message, kind="Warning")
                return RETRY
            claim = cluster.create(
                "ResourceClaim", pod, _from_template(pod, pod_claim["name"], claim_template)
            )
        statuses = [*statuses, {"name": pod_claim["name"], "resourceClaimName": name(claim)}]
        cluster.patch(pod, {"status": {"resourceClaimStatuses": statuses}}, "/status")
    return None


def clean(cluster: Cluster, claim: Json) -> None:
    """Release the claim from deleted and ended pods; after the last pod, free the devices."""
    meta, status = claim["metadata"], claim.get("status") or {}
    owner = controller_of(claim)
    if owner and owner["kind"] == "Pod" and not deleting(claim):
        pod = cluster.get("Pod", meta["namespace"], owner["name"])
        if pod is None or pod["metadata"]["uid"] != owner["uid"] or phase(pod) in _ENDED:
            cluster.delete(claim)
            return
    reserved: list[Json] = status.get("reservedFor") or []
    valid = [item for item in reserved if _uses(cluster, meta["namespace"], item)]
    if len(valid) == len(reserved) and not (deleting(claim) and not valid):
        return
    change: Json = {"reservedFor": valid or None}
    if not valid:
        change["allocation"] = None
    precondition = {"resourceVersion": meta["resourceVersion"]}
    if valid != reserved or status.get("allocation"):
        claim = cluster.patch(claim, {"metadata": precondition, "status": change}, "/status")
    finalizers = [item for item in meta.get("finalizers") or () if item != FINALIZER]
    if not valid and finalizers != (meta.get("finalizers") or []):
        precondition = {"resourceVersion": claim["metadata"]["resourceVersion"]}
        cluster.patch(claim, {"metadata": {**precondition, "finalizers": finalizers or None}})


def _uses(cluster: Cluster, namespace: str, consumer: Json) -> bool:
    """Return whether a consumer may use the claim: a running pod, or any other kind of object."""
    if consumer.get("resource") != "pods":
        return True
    pod = cluster.get("Pod", namespace, consumer["name"])
    if pod is None or pod["metadata"]["uid"] != consumer["uid"] or phase(pod) in _ENDED:
        return False
    return bool(pod["spec"].get("nodeName")) or not deleting(pod)


def _made(cluster: Cluster, pod: Json, called: str) -> Json | None:
    """Return the claim that an interrupted step created for the pod, None for none."""
    for claim in cluster.items("ResourceClaim", pod["metadata"]["namespace"]):
        owner = controller_of(claim)
        annotations = claim["metadata"].get("annotations") or {}
        if (
            owner
            and owner["uid"] == pod["metadata"]["uid"]
            and annotations.get(POD_CLAIM) == called
        ):
            return claim
    return None


def _from_template(pod: Json, called: str, template: Json) -> Json:
    template_meta = template["spec"].get("metadata") or {}
    annotations = {**(template_meta.get("annotations") or {}), POD_CLAIM: called}
    meta = {"generateName": f"{name(pod)}-{called}-", "annotations": annotations}
    if template_meta.get("labels"):
        meta["labels"] = template_meta["labels"]
    return {"metadata": meta, "spec": template["spec"]["spec"]}


def _statuses(pod: Json) -> list[Json]:
    statuses: list[Json] = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    return statuses
