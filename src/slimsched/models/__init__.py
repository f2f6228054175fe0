"""Elastic models: their spec, plans and quality, adapters, the shipped networks, and training."""
