"""The training loop of aorta's own trainer, and what it needs."""
