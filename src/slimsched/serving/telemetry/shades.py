"""The colours of choices, from narrow to wide: the same in pictures and on the dashboard's light page."""

RAMPS = (
    ("#a9d3f5", "#4488d4", "#1a3a78"),
    ("#b5e3bf", "#3f9a63", "#124a2a"),
    ("#f8d7a6", "#d1842c", "#703307"),
    ("#dec9f5", "#8f61c9", "#432073"),
)
"""Narrow, middle and wide, as `--narrow0`, `--middle0`, … of `dashboard.css`; a ramp per family of models."""

Triple = tuple[float, float, float]


def shades(number: int, ramp: int = 0) -> list[str]:
    """Return colours for a number of choices, from narrow to wide."""
    stops = RAMPS[ramp % len(RAMPS)]
    places = [n / (number - 1) for n in range(number)] if number > 1 else [0.67]
    return [
        _mix(stops[0], stops[1], 2 * at) if at < 0.5 else _mix(stops[1], stops[2], 2 * at - 1)
        for at in places
    ]


def _mix(one: str, other: str, share: float) -> str:
    """Mix two colours in the space Oklab, as browsers do for `color-mix(in oklab, …)`."""
    whole = round(100 * share) / 100  # the page writes whole per cents
    a, b = _oklab(one), _oklab(other)
    return _hex((a[0] + (b[0] - a[0]) * whole, a[1] + (b[1] - a[1]) * whole, a[2] + (b[2] - a[2]) * whole))


def _oklab(colour: str) -> Triple:
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def _hex(lab: Triple) -> str:
    light, a, b = lab
    long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
    parts = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(1.0, max(0.0, part)))):02x}" for part in parts)


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4)


def _gamma(part: float) -> float:
    return 12.92 * part if part <= 0.0031308 else float(1.055 * part ** (1 / 2.4) - 0.055)
