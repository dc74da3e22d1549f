# Runs in the sandbox as the first text from the stream; the start line has bound `r` to the raw input.
# Reads one line (length of the bundle, nonce in hex), then the zlib-compressed bundle: for each module its name,
# a NUL, its length, a NUL, its source.  Modules are compiled when they are first imported, through a finder
# that also gives tracebacks their source lines.
MYPY = False
if MYPY:
    from io import BufferedReader
    from types import ModuleType
    from typing import Any

    r = BufferedReader.__new__(BufferedReader)


def stage(r: "BufferedReader") -> None:
    import sys
    import zlib

    head = r.readline().split()
    size = int(head[0]) if len(head) == 2 else 0
    bundle = r.read(size)
    if len(bundle) < size or not size:
        sys.exit(95)
    bundle = zlib.decompress(bundle)
    sources = {}
    while bundle:
        name, length, bundle = bundle.split(b"\0", 2)
        sources["sandlift_helper" + name.decode()] = bundle[: int(length)].decode()
        bundle = bundle[int(length) :]

    def place(name: str) -> str:
        # linecache takes a name in brackets alone for one that has no source.
        return "<%s>.py" % name

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            if name not in sources:
                return None
            return spec_class(name, Finder, origin=place(name), is_package=name == "sandlift_helper")

        @staticmethod
        def create_module(spec: object) -> None:
            """Leaves it to the import system."""

        @staticmethod
        def exec_module(module: "ModuleType") -> None:
            name = module.__name__
            module.__file__ = place(name)
            exec(compile(sources[name], module.__file__, "exec"), module.__dict__)

        @staticmethod
        def get_source(name: str) -> "str | None":
            return sources.get(name)

    # No import: importlib.machinery costs more than all of this.
    spec_class: "Any" = type(sys.__spec__)
    finder: "Any" = Finder
    sys.meta_path.insert(0, finder)
    from sandlift_helper.main import run

    run(bytes.fromhex(head[1].decode()))


stage(r)
