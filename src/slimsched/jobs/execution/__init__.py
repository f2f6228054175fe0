"""Who carries a job scheduler's commands out."""
