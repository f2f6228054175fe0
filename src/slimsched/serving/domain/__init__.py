"""The nouns of serving: request, key, block, batch, instance, device, profile, cluster. Pure."""
