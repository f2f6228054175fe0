"""The field's own clients against servers on Ray: the tests of the front door, unchanged."""

from serving.api.test_open_inference_protocol import *  # noqa: F403
