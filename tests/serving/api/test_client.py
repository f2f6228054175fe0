"""The Python client and `slim client`."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from command_line import CliRunner
from served import Served
from slimsched.core.config import ConfigError
from slimsched.serving.api.client.client import (
    AnswerError,
    Client,
    ServerRefusedError,
    UnreachableError,
    read_answer,
)

Images = NDArray[np.uint8]


def test_images_come_back_with_classes_labels_logits_and_a_receipt(served: Served, images: Images) -> None:
    with Client(f"http://{served.http}") as client:
        assert client.is_ready()
        answer = client.classify(images)
        assert (answer.classes == answer.logits.argmax(axis=1)).all()
        assert len(answer.labels) == len(images)
        assert answer.logits.shape == (8, 100)
        assert ((answer.confidence() > 0) & (answer.confidence() <= 1)).all()
        assert answer.receipt["energy_mj"] > 0
        assert client.metadata()["name"] == "slimresnet"


def test_raw_and_float_pixels_give_the_same_answer(served: Served, images: Images) -> None:
    with Client(f"http://{served.http}") as client:
        raw = client.classify(images, plan="0.25")
        floats = client.classify(images.astype(np.float32) / np.float32(255), plan="0.25")
        one = client.classify(images[0], plan="0.25")
    assert (raw.classes == floats.classes).all()
    assert one.classes[0] == raw.classes[0]
    assert set(str(raw.receipt["choices"]).split(";")) == {"0.25,0.25,0.25,0.25"}


def test_a_plan_names_one_choice_for_each_segment(served: Served, images: Images) -> None:
    with Client(f"http://{served.http}") as client:
        answer = client.classify(images[:1], plan="0.25,0.5,0.75,1.0")
    assert answer.receipt["choices"] == "0.25,0.5,0.75,1.0"


def test_any_model_is_asked_by_the_names_of_its_tensors(served: Served, images: Images) -> None:
    with Client(f"http://{served.http}") as client:
        whole = client.infer({"images": images}, plan="0.5")
        some = client.infer({"images": images[::-1][::-1]}, outputs=["labels"], plan="0.5")
        with pytest.raises(
            ServerRefusedError, match="inputs are 'pixels'; model 'slimresnet' takes 'images'"
        ):
            client.infer({"pixels": images})
        with pytest.raises(ConfigError, match="complex128"):
            client.infer({"images": images.astype(complex)})
    assert list(whole.outputs) == ["classes", "logits"]
    assert list(some.outputs) == ["labels"]
    assert len(some.outputs["labels"]) == len(images)


def test_bytes_are_little_endian_whatever_the_order_in_memory(served: Served, images: Images) -> None:
    floats = images.astype(np.float32) / np.float32(255)
    with Client(f"http://{served.http}") as client:
        little = client.infer({"images": floats}, plan="0.5").outputs["classes"]
        big = client.infer({"images": floats.astype(">f4")}, plan="0.5").outputs["classes"]
    assert list(big) == list(little)


def test_refusals_carry_their_status_and_reason(served: Served, images: Images) -> None:
    with Client(f"http://{served.http}") as client:
        with pytest.raises(
            ServerRefusedError, match=r"runs at 0\.25, 0\.5, 0\.75, 1\.0; ask for one of these"
        ) as refused:
            client.classify(images, plan="0.6")
        assert refused.value.status == 400
        with pytest.raises(ServerRefusedError, match="ask for less"):
            client.classify(images, min_accuracy=99.9)
        with pytest.raises(ConfigError, match="int64"):
            client.classify(images.astype(np.int64))
        assert len(client.classify(images[:1]).labels) == 1


def test_a_token_is_sent(own_server: Callable[..., Served], images: Images) -> None:
    served = own_server("--token", "open-sesame")
    with pytest.raises(ServerRefusedError) as refused, Client(f"http://{served.http}") as stranger:
        stranger.classify(images[:1])
    assert refused.value.status == 401
    with Client(f"http://{served.http}", token="open-sesame") as client:
        assert len(client.classify(images[:1]).labels) == 1


def test_a_missing_server_and_a_bad_address_are_reported(images: Images) -> None:
    with pytest.raises(UnreachableError, match="slim serve"):
        Client("http://127.0.0.1:9", timeout_s=2).classify(images)
    with pytest.raises(ConfigError, match="ftp://x"):
        Client("ftp://x")
    with pytest.raises(AnswerError):
        read_answer(b'{"outputs": 3}', None)


def test_a_photograph_of_any_size_is_classified_in_one_line(served: Served, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (90, 160, 3), dtype=np.uint8)).save(photo)
    url = ["--url", f"http://{served.http}"]
    shown = CliRunner().invoke(["client", str(photo), *url])
    assert shown.exit_code == 0
    assert "photo.png: " in shown.output
    as_json = CliRunner().invoke(["client", str(photo), *url, "--plan", "0.5", "--json"])
    row = json.loads(as_json.stdout)[0]
    assert row["receipt"]["choices"] == "0.5,0.5,0.5,0.5"
