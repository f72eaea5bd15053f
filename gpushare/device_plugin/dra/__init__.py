"""A DRA driver: it offers a node's GPUs by memory, and tells each container of a claim its share.

It is a small one, for tests, trials and nodes without a GPU: it reads the GPUs from a file, watches
over no health but the file's, and enforces nothing by itself. Its place is beside the device
plug-in, whose work it does in the other world: the GPUs, their units and the variables that a
container is told are the plug-in's, so a program finds the same in both, and a driver for
production would add the plug-in's other rooms (NVML, health, metrics). It runs only where somebody
starts `gpushare dra-driver`; no manifest does.
"""
