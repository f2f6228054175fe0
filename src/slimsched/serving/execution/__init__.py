"""Execution: carries out commands on a simulated cluster or on real servers."""
