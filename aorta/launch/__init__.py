"""From a configuration to submitted jobs.

Plans, sbatch text, profiler command lines; Slurm and the local executor.
"""
