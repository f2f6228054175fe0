"""What clients send to the model repository."""

from msgspec import Struct, field

from slimsched.serving.api.refusal import BadRequest

Value = str | int | bool


class RepositoryRequest(Struct, frozen=True, kw_only=True):
    """The body of a request to the repository; Triton's clients send it, others may leave it out."""

    ready: bool = False
    parameters: dict[str, Value] = field(default_factory=dict)

    def version(self) -> str:
        """The version to load; empty: the newest."""
        return version_of(self.parameters)


def version_of(parameters: dict[str, Value]) -> str:
    """Read the parameters of a load. Configurations and files are the operator's: they are not taken."""
    for name in parameters:
        if name != "version":
            raise BadRequest(
                f"parameter '{name}' is not accepted: models are loaded as they lie in the repository; "
                "only 'version' may be given"
            )
    return str(parameters.get("version", ""))
