"""`python -m aorta.workloads.trainer`."""

import sys

from aorta.workloads.trainer.main import main

if __name__ == "__main__":
    sys.exit(main())
