"""Colours of fields and of groups, the same in the terminal and in an SVG."""

FIELD_FILLS = {"k": "#8abdf0", "k_scale": "#1f5fa8", "v": "#98d9ac", "v_scale": "#1f7a4a"}
#: Fields whose colour wants white text.
DARK_FIELDS = frozenset({"k_scale", "v_scale"})

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
