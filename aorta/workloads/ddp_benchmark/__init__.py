"""Ways to average gradients, compared on a transformer language model: `benchmark_ddp.py`."""
