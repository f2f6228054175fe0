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
    paths, names = json.loads(body)["paths"], set[str]()
    assert "/v2/models/slimresnet/infer" in paths
    for path, operations in paths.items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            status, _ = ask(method.upper(), path.replace("{model}", "slimresnet"))
            assert str(status) in operation["responses"], f"{method} {path} gave {status}"
            assert status == (200 if method == "get" or path.endswith("/index") else 400)
            assert operation["operationId"] not in names
            names.add(operation["operationId"])
            assert {int(code) for code in operation["responses"]} <= set(http.client.responses)
