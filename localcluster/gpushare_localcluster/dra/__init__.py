"""A DRA driver for trials: it offers a node's GPUs by memory, and tells each container its share.

It reads the GPUs from a file, watches over no health but the file's, and enforces nothing by
itself, so a node without a GPU does. The GPUs, their units and the variables of a container are
those of gpushare's device plug-in: a program finds the same variables with either. Nothing but the
command `gpushare-dra-driver` starts the driver.
"""
