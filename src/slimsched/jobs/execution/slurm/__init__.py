"""The live driver for jobs: a real Slurm, which also keeps all state."""
