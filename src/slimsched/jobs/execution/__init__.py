"""Who carries out a job scheduler's commands: the simulator, or Slurm."""
