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

TRAINING_MODELS = {
    name: TrainingModel(name=name, compute_s=compute_s, exposed_bytes=exposed_mb * 1e6, source=source)
    for name, compute_s, exposed_mb, source in _TABLE
}
