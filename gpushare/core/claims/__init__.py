"""Devices that drivers publish, and the model of the devices that kube-scheduler would allocate."""
