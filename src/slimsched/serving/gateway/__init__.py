"""The gateway: a pure state machine that admits requests, routes them and judges answers."""
