"""Ask a running server to classify images, with your own limits on plan, accuracy and time.

slim serve &                           # in a checkout: make setup, then .venv/bin/slim serve
python examples/05_serve_and_query.py  # or with another address: … http://127.0.0.1:9000
"""

import sys

import numpy as np

from slimsched import Client

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
images = np.random.default_rng(0).integers(
    0, 256, (2, 3, 32, 32), dtype=np.uint8
)  # noise; use your own images

with Client(url) as client:
    print("ready:", client.is_ready())
    for terms in ({}, {"plan": "0.25"}, {"min_accuracy": 0.8, "deadline_ms": 5000.0}):
        answer = client.classify(images, **terms)
        plan = str(answer.receipt["choices"]).split(";")[0]
        print(f"{terms or 'the router chooses'}: {', '.join(answer.labels)}; plan {plan}")
