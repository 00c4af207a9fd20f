"""Sidecar samplers of GPUs and CPUs, one CSV per node."""
