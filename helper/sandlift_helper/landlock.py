"""A process shut into one directory tree by the kernel's Landlock, where there is one (landlock(7)).

It is the second line: the walk by descriptor is the first, and the only one on kernels before 5.19 and on other
systems.  What changes attributes only, such as chmod(2), is beyond it.
"""

import os
import sys

# The same on every architecture but alpha.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_QUERY = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38

# Version 2 brought the right to rename between directories; before it, every such rename is refused.
_ABI_MIN = 2
# Write to files, remove directories and files, make entries of each kind, rename between directories.
_WRITE, _REMOVE, _MAKE, _REFER = 1 << 1, 0b11 << 4, 0b1111111 << 6, 1 << 13
_TRUNCATE, _TRUNCATE_ABI = 1 << 14, 3


def confine(directory_fd: int) -> bool:
    """Lets this process and its children change files below the directory only; returns whether the kernel can.

    The process must have one thread.  It cannot be undone.
    """
    try:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        call = library.syscall
    except (ImportError, OSError, AttributeError):
        return False
    call.restype = ctypes.c_long
    long, null = ctypes.c_long, ctypes.c_void_p(0)
    abi = call(long(_CREATE_RULESET), null, long(0), long(_VERSION_QUERY))
    if os.uname().sysname != "Linux" or abi < _ABI_MIN:
        return False
    rights = _WRITE | _REMOVE | _MAKE | _REFER | (_TRUNCATE if abi >= _TRUNCATE_ABI else 0)
    mask = rights.to_bytes(8, sys.byteorder)
    ruleset = call(long(_CREATE_RULESET), mask, long(8), long(0))
    if ruleset < 0:
        return False
    try:
        rule = mask + directory_fd.to_bytes(4, sys.byteorder)
        refused = (
            call(long(_ADD_RULE), long(ruleset), long(_PATH_BENEATH), rule, long(0))
            or library.prctl(_NO_NEW_PRIVILEGES, long(1), long(0), long(0), long(0))
            or call(long(_RESTRICT_SELF), long(ruleset), long(0))
        )
        return not refused
    finally:
        os.close(ruleset)
