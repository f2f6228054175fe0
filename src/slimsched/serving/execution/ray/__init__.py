"""The same servers on Ray: placed, supervised and started again by it, spoken to directly."""
