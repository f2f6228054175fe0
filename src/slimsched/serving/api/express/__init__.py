"""The compiled line: calls whose heads are known are read without Python."""
