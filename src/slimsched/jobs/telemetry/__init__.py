"""What happened to jobs: folds over the log."""
