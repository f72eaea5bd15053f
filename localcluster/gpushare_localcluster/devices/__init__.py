"""The device manager of the kubelet, and the device plug-ins.

Tested in `tests/integration/test_device_plugin.py`, as the kubelet of a real plug-in, and in
`tests/integration/test_demo_devices.py`.
"""
