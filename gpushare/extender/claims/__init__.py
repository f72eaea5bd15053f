"""Claims of Dynamic Resource Allocation: nodes are ranked for pods with claims."""
