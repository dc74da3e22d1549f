"""sandlift lifts a workspace out of a remote sandbox and sets it down again.

    with sandlift.connect("ssh://me@box/srv/work") as box, sandlift.Store.open("store", create=True) as store:
        result = box.capture(store, "demo")

All public names are here, each imported when it is first used.  Errors are in `sandlift.errors`, and the same calls
as coroutines in the module `sandlift.aio`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandlift import aio as aio
    from sandlift.box import Box, capture, connect, restore
    from sandlift.deadline import Cancel
    from sandlift.errors import SandliftError
    from sandlift.limits import Limits
    from sandlift.model import Event, RestoreOptions, Rules
    from sandlift.results import Action, Capture, Restore, Survey
    from sandlift.store import Store

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Box",
    "Cancel",
    "Capture",
    "Event",
    "Limits",
    "Restore",
    "RestoreOptions",
    "Rules",
    "SandliftError",
    "Store",
    "Survey",
    "__version__",
    "capture",
    "connect",
    "restore",
]

_HOMES = {
    "Action": "results",
    "Box": "box",
    "Cancel": "deadline",
    "Capture": "results",
    "Event": "model",
    "Limits": "limits",
    "Restore": "results",
    "RestoreOptions": "model",
    "Rules": "model",
    "SandliftError": "errors",
    "Store": "store",
    "Survey": "results",
    "capture": "box",
    "connect": "box",
    "restore": "box",
}


def __getattr__(name: str) -> object:
    if name == "aio":
        return import_module(f"{__name__}.aio")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
