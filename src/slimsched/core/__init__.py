"""What both products build on: configuration, the event log, plugins, clocks and PPO."""
