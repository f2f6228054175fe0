"""The HTTP server against its OpenAPI document, with requests that schemathesis generates from it."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from cluster import small_cluster
from served import Served
from slimsched.serving.api.pages import document
from slimsched.serving.api.service import InferenceService, Limits
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import GatewayOptions
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import LocalEngine
from slimsched.serving.routers.registry import make_router

CLUSTER = small_cluster()
GATEWAY = Gateway(CLUSTER, make_router("jsq", CLUSTER, 0), GatewayOptions())
SERVICE = InferenceService(LiveCluster(GATEWAY, LocalEngine([])), Limits())

schema = schemathesis.openapi.from_dict(document(SERVICE))


@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation_follows_the_document(case: schemathesis.Case, served: Served) -> None:
    """Data that does not fit its shape and text that is not a goal may be refused; no schema can say so."""
    case.call_and_validate(base_url=f"http://{served.http}", excluded_checks=[positive_data_acceptance])
