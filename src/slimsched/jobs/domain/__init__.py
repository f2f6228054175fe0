"""The nouns of training clusters: job, topology, placement, tier, fabric. Pure."""
