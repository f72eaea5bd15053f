"""The kubelet's device manager, and the device plug-ins that it asks.

Tested in `tests/integration/test_device_plugin.py`, where it is the kubelet of a real plug-in, and
in `tests/integration/test_demo_devices.py`.
"""
