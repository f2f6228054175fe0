"""Front processes, which read requests and write answers for the gateway."""
