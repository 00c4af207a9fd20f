"""The training loop and its workloads."""
