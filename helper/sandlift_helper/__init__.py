"""The sandbox side of sandlift: standard library only, CPython 3.6 and later.

It scans a workspace, judges its links, cuts its files into blocks, or writes a tree, and leaves nothing
behind.  It is shipped as source (see ``_stage``) and imported by the host for its pure parts.
"""

# The modules that every operation needs, each importing only earlier ones.
COMMON = (
    "wire",
    "messages",
    "members",
    "codec",
    "table",
    "ladder",
    "mounts",
    "channel",
    "workers",
    "marker",
    "scan",
    "blocks",
    "reading",
    "segments",
)
# What the bundle of each operation holds beside them.
OPERATIONS = {
    "capture": ("links", "ignore", "portions", "scanners", "workspace", "parts", "base", "pace", "sending", "capture"),
    "survey": ("links", "ignore", "portions", "scanners", "workspace", "survey"),
    "apply": (
        "target",
        "removal",
        "rename",
        "landlock",
        "listing",
        "writer",
        "staging",
        "inplace",
        "confined",
        "intake",
        "tree",
        "apply",
    ),
}
# All of them, in one order for what covers the whole helper.
MODULES = COMMON + tuple(dict.fromkeys(name for names in OPERATIONS.values() for name in names)) + ("main",)
