"""`python benchmark_ddp.py`, or under torchrun: ways to average gradients, compared."""

import sys

from aorta.commands.benchmark_ddp import main

if __name__ == "__main__":
    sys.exit(main())
