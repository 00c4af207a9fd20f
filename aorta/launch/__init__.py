"""From a configuration to submitted jobs: plans, sbatch text, profiler command lines, Slurm and the local executor."""
