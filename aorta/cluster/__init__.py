"""A real four-node Slurm cluster on one machine, for development and for trying the workflow."""
