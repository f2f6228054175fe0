"""Telemetry: figures, frames and pictures computed from the event log."""
