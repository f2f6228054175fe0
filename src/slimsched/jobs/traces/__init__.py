"""Where jobs and clusters come from: traces, a generator, profiles of training models."""
