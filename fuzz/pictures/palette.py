"""Colours of fields and of groups, the same in the terminal and in an SVG."""

FIELD_FILLS = {
    "k": "#8abdf0",
    "k_scale": "#1f5fa8",
    "k_norm": "#1f5fa8",
    "v": "#98d9ac",
    "v_scale": "#1f7a4a",
    "v_zero": "#0f4f2e",
    "pad": "#d0d7de",
    "latent": "#f0b98a",
    "rope": "#f2dd8e",
    "scale": "#a8561f",
    "conv": "#8fd3d8",
    "ssm": "#e3a6cf",
}
#: What stands for a field's bytes in a terminal.
FIELD_LETTERS = {
    "k": "k",
    "k_scale": "K",
    "k_norm": "K",
    "v": "v",
    "v_scale": "V",
    "v_zero": "Z",
    "pad": "-",
    "latent": "l",
    "rope": "r",
    "scale": "S",
    "conv": "c",
    "ssm": "s",
}
#: Fields whose colour wants white text.
DARK_FIELDS = frozenset({"k_scale", "k_norm", "v_scale", "v_zero", "scale"})

#: Per group four tints: even and odd items of even layer sets, the same of odd layer sets.
_GROUP_FILLS = (
    ("#b9a9ee", "#d6ccf6", "#9c88e0", "#c1b3f0"),
    ("#f2c55f", "#f9e0a6", "#dfa62f", "#efca7c"),
    ("#86cfc4", "#bde5df", "#5ab5a8", "#9cd6cd"),
    ("#eba6c8", "#f5d0e2", "#d981ae", "#ecb4d0"),
)


def group_fill(group: int, layer_set: int, item: int) -> str:
    """The tint of an item of a group."""
    return _GROUP_FILLS[group % len(_GROUP_FILLS)][layer_set % 2 * 2 + item % 2]
