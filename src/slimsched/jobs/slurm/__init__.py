"""The job scheduler on a real Slurm."""
