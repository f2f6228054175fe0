"""The OpenAPI document describes the paths that exist."""

import http.client
import json

from served import Served


def test_every_documented_path_answers_with_a_documented_code(served: Served) -> None:
    connection = http.client.HTTPConnection(served.http, timeout=60)

    def ask(method: str, path: str) -> tuple[int, bytes]:
        connection.request(method, path, body=b"{}" if method != "GET" else None)
        response = connection.getresponse()
        return response.status, response.read()

    status, body = ask("GET", "/openapi.json")
    assert status == 200
    paths = json.loads(body)["paths"]
    assert "/v2/models/slimresnet/infer" in paths
    for path, operations in paths.items():
        closed = path.startswith("/v2/repository")  # this server was started without one
        for method, operation in operations.items():
            if method == "parameters":
                continue
            status, _ = ask(method.upper(), path.replace("{model}", "slimresnet"))
            assert str(status) in operation["responses"], f"{method} {path} gave {status}"
            assert status == (200 if method == "get" else 403 if closed else 400)
            assert {int(code) for code in operation["responses"]} <= set(http.client.responses)
