"""Dynamic Resource Allocation (resource.k8s.io/v1): devices in slices, claims, allocations."""
