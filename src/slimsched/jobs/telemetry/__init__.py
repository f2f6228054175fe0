"""What happened to jobs, in numbers: figures are folds over the log."""
