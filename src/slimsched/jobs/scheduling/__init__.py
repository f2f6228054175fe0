"""Training-job decisions: delay timers, auto-tuner, preemption, placement, orderings. Pure."""
