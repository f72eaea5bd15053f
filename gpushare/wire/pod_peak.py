"""The most that the containers of a pod hold at any time, by Kubernetes' formula.

Standard library only, so that the command line shares it. The formula: `PodRequests` of
k8s.io/component-helpers. Tested in `tests/unit/wire/test_pods.py`.
"""

from collections.abc import Iterable


def peak(regular: Iterable[int], inits: Iterable[tuple[int, object]]) -> int:
    """Return the most held at any time.

    regular: the amount of each container. inits: amount and restartPolicy of each init container;
    they run one after the other, beside the sidecars (restartPolicy Always) started before.
    """
    sidecars = most = 0
    for amount, restart_policy in inits:
        most = max(most, sidecars + amount)
        if restart_policy == "Always":
            sidecars += amount
    return max(sum(regular) + sidecars, most)
