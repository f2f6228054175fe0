"""What both products build on: configuration, the event log, plugins, and clocks."""
