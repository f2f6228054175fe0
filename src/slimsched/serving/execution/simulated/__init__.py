"""Virtual time: the cluster and the training jobs, simulated by the same core that serves."""
