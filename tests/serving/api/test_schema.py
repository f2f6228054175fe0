"""The HTTP side against its own OpenAPI document: what schemathesis makes of it is answered as promised."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from served import Served
from slimsched.serving.api.openapi import document
from slimsched.serving.api.service import Limits

schema = schemathesis.openapi.from_dict(document(Limits(), 32))


@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation_keeps_to_the_document(case: schemathesis.Case, served: Served) -> None:
    """Numbers that do not fit the shape and words that are no goal may be refused: no schema can say it."""
    case.call_and_validate(base_url=f"http://{served.http}", excluded_checks=[positive_data_acceptance])
