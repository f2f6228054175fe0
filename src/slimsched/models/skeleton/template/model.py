"""An elastic model of two segments. Replace the layers by your own, then run `slim model check` again."""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.elastic import ElasticModel, Segment, Tensors
from slimsched.models.spec import ModelSpec

HIDDEN = 64


class Net(nn.Module):
    """A plain PyTorch module at full width. Train it as you like; save its state_dict as safetensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN)
        self.classifier = nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 16) -> (N, 4)."""
        y: Tensor = self.classifier(F.relu(self.second(F.relu(self.first(x)))))
        return y


class Model(ElasticModel):
    """Runs the leading part of each layer, as much as the choice says."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.net = Net()  # modules that are attributes get the weights of weights.safetensors

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Return a function that runs one segment; it must not change when another choice is loaded."""
        net, out = self.net, int(HIDDEN * float(choice))
        if index == 0:
            weight, bias = net.first.weight[:out], net.first.bias[:out]  # views: no memory of their own
            return lambda tensors: (F.relu(F.linear(tensors[0], weight, bias)),)
        into = int(HIDDEN * float(previous or 1.0))  # as wide as what the segment before hands over
        weight, bias = net.second.weight[:out, :into], net.second.bias[:out]
        last, last_bias = net.classifier.weight[:, :out], net.classifier.bias

        def run(tensors: Tensors) -> Tensors:
            (x,) = tensors  # (N, into)
            hidden: Tensor = F.relu(F.linear(x, weight, bias))
            return (F.linear(hidden, last, last_bias),)  # (N, 4)

        return run

    def whole(self, plan: tuple[str, ...]) -> Segment | None:
        """Optional: the uncut model at a plan. `slim model check` compares the cut one with it."""
        return (lambda tensors: (self.net(*tensors),)) if plan == ("1.0", "1.0") else None

    def prepare(self, raw: Tensors) -> Tensors:
        """Change what clients send into what segment 0 takes: resize, normalize, change type."""
        return raw

    def finish(self, last: Tensors) -> Tensors:
        """Change what the last segment gives into the outputs that clients see."""
        return last


def build(spec: ModelSpec) -> ElasticModel:
    """Make the model; `spec` is what model.toml says."""
    return Model(spec)
