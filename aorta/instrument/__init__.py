"""Timing inside the training process: streams, collectives, step records."""
