"""The HTTP server against its OpenAPI document, with requests that schemathesis generates from it."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from served import Served
from slimsched.serving.api.openapi import document
from slimsched.serving.api.service import Limits

schema = schemathesis.openapi.from_dict(document(Limits(), 32))


@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation_follows_the_document(case: schemathesis.Case, served: Served) -> None:
    """Data that does not fit its shape and text that is not a goal may be refused; no schema can say so."""
    case.call_and_validate(base_url=f"http://{served.http}", excluded_checks=[positive_data_acceptance])
