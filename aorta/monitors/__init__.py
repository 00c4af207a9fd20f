"""Sidecar samplers of GPUs and CPUs, one CSV a node."""
