"""A DRA driver for trials: offers a node's GPUs by memory, and gives each container variables.

A file has the GPUs and their health, and nothing is enforced, so that a node needs no GPU. The
GPUs, units and variables are those of gpushare's device plug-in: a program finds the same variables
with either. Only the command `gpushare-dra-driver` starts the driver.
"""
