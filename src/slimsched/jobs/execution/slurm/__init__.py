"""Training jobs on a real Slurm."""
