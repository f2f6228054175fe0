"""The command `slim`: the only place that assembles parts."""
