"""Real time: servers in processes of their own, executors on devices, sensors."""
