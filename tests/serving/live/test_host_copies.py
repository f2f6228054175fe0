"""Weights leave a device with the last instance and come back the same.

The meta device stands in for a GPU where only places matter; the rest runs where there is a CUDA device.
"""

import torch

from hosting import hosted, images, legs
from slimsched.models.elastic import Tensors
from slimsched.models.loading import load
from slimsched.models.slimresnet.elastic import SlimResNetModel
from slimsched.serving.domain.request import Key
from slimsched.serving.live.executor import HostCopies

WIDTHS = (0.25, 1.0, 0.5, 0.75)


def test_weights_are_copied_to_the_host_once_and_keep_their_layout() -> None:
    weight = torch.rand(8, 8, 3, 3).to(memory_format=torch.channels_last)
    layer = torch.nn.Module()
    layer.register_buffer("weight", weight)
    copies = HostCopies(torch.device("meta"))
    for _ in range(2):
        copies.load(layer)
        assert layer.get_buffer("weight").is_meta
        assert layer.get_buffer("weight").is_contiguous(memory_format=torch.channels_last)
        copies.off_load(layer)
        assert layer.get_buffer("weight").data_ptr() == weight.data_ptr(), "the same copy again"


def test_off_loaded_segments_come_back_place_by_place_and_give_the_same_answers() -> None:
    model = hosted(SlimResNetModel(load(), precision=torch.float32))

    def run() -> Tensors:
        rows: Tensors = (images(3),)
        for leg in legs(WIDTHS):
            rows = model.segment(leg)(rows)
        return rows

    def second_is_wanted(key: Key) -> bool:
        return key.segment == 1

    wanted = run()
    held = model.weight_bytes()
    model.off_load(second_is_wanted)
    assert {key.segment for key in model.made()} == {1}
    assert 0 < model.weight_bytes() < held
    model.off_load(lambda key: False)
    assert model.weight_bytes() == 0
    assert torch.equal(run()[0], wanted[0])
    assert model.weight_bytes() == held
