"""Step records of a program that does not know of us.

The node agent puts the folder `site` in front of PYTHONPATH. Python runs its `sitecustomize` at the start,
which waits for the program to import torch and then installs hooks: on optimizers, loaders, root modules,
the backward pass and collectives. They drive a `StepRecorder`.

Everything here runs in the program's own Python, from this folder: the standard library, torch, and the parts
of `aorta` that need nothing else. A hook that fails is switched off, and the program goes on.
"""
