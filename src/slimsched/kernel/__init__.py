"""What serving and jobs both need: timeline, wake-ups, log, replay, observers, plugins, statistics."""
