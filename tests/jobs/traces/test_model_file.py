"""Training models of a user's own."""

import pytest

from slimsched.core.config import SlimError
from slimsched.jobs.traces.models import TRAINING_MODELS, read_model_file

FILE = """\
[[model]]
name = "by-bytes"
compute_s = 0.5
gradient_mb = 1000
hidden = 0.25

[[model]]
name = "measured"
compute_s = 0.2
spread_s = 0.34
gpus = 8
nic_gb_per_s = 12.5

[[model]]
name = "sensitive"
compute_s = 0.2
slowdown = 1.7
"""


def test_models_come_by_bytes_by_measurement_and_by_slowdown(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    models = read_model_file(path)
    assert models["by-bytes"].exposed_bytes == pytest.approx(750e6)
    assert models["measured"].exposed_bytes == pytest.approx(0.14 * 12.5e9 / 1.75)
    assert models["sensitive"].exposed_bytes == pytest.approx(models["measured"].exposed_bytes)
    assert models.keys() == TRAINING_MODELS.keys() | {"by-bytes", "measured", "sensitive"}
    assert models["measured"].source == "mine.toml"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[model]]\nname = "x"\ncompute_s = 1\n', "exactly one of gradient_mb, spread_s and slowdown"),
        ('[[model]]\nname = "x"\ncompute_s = 1\nslowdown = 2\ngpus = 1\n', "gpus from 2 on"),
        ('[[model]]\nname = "x"\ncompute_s = 0\ngradient_mb = 1\n', "compute_s"),
        ('[[model]]\nname = "x"\ncompute = 1\n', "compute"),
        ("model = 3\n", "model"),
    ],
)
def test_a_wrong_model_file_is_refused_in_one_line(text: str, says: str, tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SlimError, match=says) as caught:
        read_model_file(path)
    assert "\n" not in str(caught.value)


def test_a_model_may_say_how_it_goes_on_more_gpus(tmp_path) -> None:
    path = tmp_path / "models.toml"
    text = '[[model]]\nname = "mine"\ncompute_s = 1\ngradient_mb = 1\nscaling = [[1, 1.0], [4, 3.0]]\n'
    path.write_text(text)
    assert read_model_file(path)["mine"].sizes(4) == ((1, 1 / 3), (4, 1.0))
    path.write_text(text.replace("[1, 1.0]", "[5, 1.0]"))
    with pytest.raises(SlimError, match="ascending"):
        read_model_file(path)
