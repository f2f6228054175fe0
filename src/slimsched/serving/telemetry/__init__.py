"""What happened, in numbers: the event log and meters as folds over it."""
