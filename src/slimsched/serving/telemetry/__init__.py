"""What happened, in numbers: figures are folds over the event log."""
