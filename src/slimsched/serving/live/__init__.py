"""The serving cluster in real time: processes that run models on devices."""
