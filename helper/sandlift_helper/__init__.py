"""The sandbox side of sandlift: standard library only, CPython 3.6 and later.

It scans a workspace, judges its links, cuts its files into blocks, or writes a tree, and leaves nothing
behind.  It is shipped as source (see ``_stage``) and imported by the host for its pure parts.
"""

# The modules of the bundle, each importing only earlier ones.
MODULES = (
    "wire",
    "messages",
    "members",
    "codec",
    "table",
    "links",
    "ignore",
    "ladder",
    "mounts",
    "channel",
    "workers",
    "scan",
    "blocks",
    "reading",
    "capture",
    "survey",
    "staging",
    "writer",
    "apply",
    "main",
)
