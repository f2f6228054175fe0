"""The live driver: one process per server, executors on devices, sensors."""
