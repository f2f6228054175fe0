"""Live execution in real time: server processes, executors on devices, power and load sensors."""
