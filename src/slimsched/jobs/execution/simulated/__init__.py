"""The simulated driver for jobs: failures, checkpoints and shared links included."""
