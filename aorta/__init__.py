"""aorta: why does this training job not scale, and what do I change?"""

__version__ = "0.1.0"
