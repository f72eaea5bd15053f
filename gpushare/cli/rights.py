"""Say which right a user lacks, and what a command then judges by.

The API server refuses with `nodes is forbidden: User "jane" cannot list resource "nodes" in API
group "" at the cluster scope`, which kubectl prints. Standard library alone.
"""

import re

from gpushare.errors import ApiError, GpuShareError

FORBIDDEN = 403
"""The status of a refusal for a missing right."""
VIEWER = "gpushare-viewer"
"""The ClusterRole that has the rights of all commands, in config and in the chart."""

_REFUSAL = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "[^"]*" (at|in) the')
_SCOPES = {"at": "of the whole cluster", "in": "of that namespace"}
SNAPSHOT = "; --snapshot FILE judges by a file of `gpushare inspect -o json`"
"""What is left to a user without the rights, for commands with that option."""


def lacks(error: ApiError) -> str:
    """Return the missing right as text: "no right to list nodes of the whole cluster (...)"."""
    match = _REFUSAL.search(str(error))
    if match is None:
        return f"no right to read the cluster ({error})"
    right = f"no right to {match[1]} {match[2]} {_SCOPES[match[3]]}"
    return f"{right} (the ClusterRole {VIEWER} has it)"


def without_cluster(error: ApiError, command: str, remedy: str = SNAPSHOT) -> GpuShareError:
    """Return the error of a command that has no answer without the whole cluster.

    Another error than a refusal for a missing right stays as it is. remedy: the end of the text.
    """
    if error.refusal != FORBIDDEN:
        return error
    text = f"{lacks(error)}: {command} needs all nodes and pods{remedy}"
    return GpuShareError(text)
