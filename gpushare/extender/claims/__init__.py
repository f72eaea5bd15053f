"""Claims of Dynamic Resource Allocation, allocated by us in kube-scheduler's place."""
