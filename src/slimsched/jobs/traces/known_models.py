"""The training models we know: seconds and exposed bytes per iteration, derived from measurements.

Made by `slim jobs models --derive`, which prints this table anew from the data folder (see profiles.py
for how). MEASURED are those with measured step times; jobs of a trace that names no model draw from them.
"""

from slimsched.jobs.domain.training_model import TrainingModel

MEASURED = ("lm", "transformer", "resnet18", "resnet50", "bert", "deepspeech2", "imagenet", "ncf", "yolov3")

_TABLE = (
    # name, seconds, exposed megabytes, source
    ("lm", 0.002011, 54.26, "Gavel V100, LM (batch size 20)"),
    ("transformer", 0.02014, 140.1, "Gavel V100, Transformer (batch size 64)"),
    ("resnet18", 0.003909, 43.22, "Gavel V100, ResNet-18 (batch size 64)"),
    ("resnet50", 0.03597, 13.65, "Gavel V100, ResNet-50 (batch size 16)"),
    ("bert", 0.1533, 606, "Sia A100 step, T4 4+4 synchronisation, batch 12"),
    ("deepspeech2", 0.729, 195.6, "Sia A100 step, T4 4+4 synchronisation, batch 20"),
    ("imagenet", 0.1734, 52.7, "Sia A100 step, T4 4+4 synchronisation, batch 115"),
    ("ncf", 0.008765, 9.948, "Sia A100 step, T4 4+4 synchronisation, batch 257"),
    ("yolov3", 0.4486, 443, "Sia A100 step, T4 4+4 synchronisation, batch 8"),
    ("vgg11", 0.3941, 531.6, "Tiresias 60-job trace, public parameter count"),
    ("vgg16", 0.4477, 553.6, "Tiresias 60-job trace, public parameter count"),
    ("vgg19", 0.4662, 574.8, "Tiresias 60-job trace, public parameter count"),
    ("alexnet", 0.1619, 244.4, "Tiresias 60-job trace, public parameter count"),
    ("googlenet", 0.1401, 13.2, "Tiresias 60-job trace, public parameter count"),
    ("inception3", 0.337, 47.6, "Tiresias 60-job trace, public parameter count"),
    ("inception4", 0.6436, 85.4, "Tiresias 60-job trace, public parameter count"),
    ("resnet101", 0.3646, 89, "Tiresias 60-job trace, public parameter count"),
    ("resnet152", 0.5085, 120.4, "Tiresias 60-job trace, public parameter count"),
)

_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
_PACE = {
    # on N T4s, four per machine, at the best batch size; 1 is the pace on one (see sia_profile.py)
    "bert": (1, 2.075, 4.08, 5.533, 8.635, 10.28, 11.68, 13.98, 15.17, 13.42),
    "deepspeech2": (1, 1.753, 3.449, 4.898, 6.851, 8.382, 9.385, 8.911, 10.25, 10.37),
    "imagenet": (1, 1.921, 3.517, 6.669, 9.644, 11.88, 16.67, 19.41, 26.94, 33.09),
    "ncf": (1, 1.113, 1.668, 0.6875, 1.03, 0.9616, 0.8588, 0.7711, 0.5841, 0.6654),
    "yolov3": (1, 1.88, 2.68, 1.981, 2.47, 3.375, 3.221, 3.418, 3.194, 4.412),
}

TRAINING_MODELS = {
    name: TrainingModel(
        name=name,
        compute_s=compute_s,
        exposed_bytes=exposed_mb * 1e6,
        source=source,
        scaling=tuple(zip(_SIZES, _PACE.get(name, ()), strict=False)),
    )
    for name, compute_s, exposed_mb, source in _TABLE
}
