"""aorta: why does this training job not scale, and what do I change?"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Return `load`, which reads runs as data frames: what it needs is imported at its first use only."""
    if name != "load":
        raise AttributeError(f"module 'aorta' has no attribute {name!r}")
    import importlib

    return importlib.import_module("aorta.exports.frames").load
