"""The one rule for symbolic links: a link is kept when it stays in the workspace.

Nothing is ever followed to read content, and nothing is asked of a file system: the rule works on texts and
on the set of links alone, so helper and host reach the same verdict.  It has two steps, `rebase` for absolute
texts and `judge` for the walk of all links of a tree.
"""

MYPY = False
if MYPY:
    from collections.abc import Container, Sequence

_OUTSIDE = -1
_LOOP = -2
_BEYOND = -3


def components(path: bytes) -> "list[bytes]":
    """Returns the components of *path* without empty and ``.`` ones; ``..`` stays, for nothing may fold it."""
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def rebase(text: bytes, depth: int, spellings: "Sequence[Sequence[bytes]]") -> "bytes | None":
    """Turns an absolute link text into one relative to the link, or returns None when it is outside.

    *depth* is the number of directories between the link and the root, *spellings* the `components` of every
    name that the root goes by.  The part below the root stays verbatim: inner ``//``, ``/./``, ``..`` and a
    trailing slash carry meaning (a file with a slash behind it must still fail to open).
    """
    best = -1
    for spelling in spellings:
        rest = _below(text, spelling)
        if rest is not None and len(spelling) > best:
            best = len(spelling)
            found = rest
    if best < 0:
        return None
    if found:
        return b"../" * depth + found
    return b"/".join([b".."] * depth) or b"."


def _below(text: bytes, spelling: "Sequence[bytes]") -> "bytes | None":
    """Returns what follows the root and its run of slashes, or None when *spelling* is no prefix of *text*."""
    position = 0
    for wanted in spelling:
        while True:
            while text[position : position + 1] == b"/":
                position += 1
            end = text.find(b"/", position)
            end = len(text) if end < 0 else end
            part = text[position:end]
            position = end
            if part != b".":
                break
        if part != wanted:
            return None
    return text[position:].lstrip(b"/")


def judge(
    paths: "Sequence[bytes]", texts: "Sequence[bytes]", beyond: "Container[int]" = (), present: bool = False
) -> "list[bool]":
    """Says for each link whether it is inside.

    *paths* are relative to the root, *texts* are link texts.  A relative text is walked from its link's
    directory: empty components and ``.`` stay, ``..`` goes up (above the root is outside), the name of a link
    that is inside continues where that link ends, and any other name goes down as if it were a directory.
    Links are judged depth first, each once, remembering where it ends.  A link that is being judged already is
    a loop, and ends every walk that reaches it: such links are kept, for they can resolve to nothing.

    An absolute text is outside, but for the links *beyond*, given by number, that a person wants where they are:
    such a link is kept, a walk may pass it, and is outside if it then meets ``..``, for nobody knows from where.
    A link that is outside counts as left out: its name is like any other.  With *present* it is there all the
    same, so a walk that meets it is outside too.

    The cost is proportional to the bytes of *paths* and *texts*; there is no hop limit and no recursion.
    """
    walk = _Walk(paths)
    for link, text in enumerate(texts):
        if text.startswith(b"/"):
            walk.end(link, _BEYOND if link in beyond else _OUTSIDE)
    for link in range(len(paths)):
        if not walk.begun[link]:
            walk.run(link, texts, present)
    return [end != _OUTSIDE for end in walk.ends]


class _Walk:
    """The places of the links, as a tree of numbered nodes, and how far each link is judged.

    A walk stands at a node, or so many names *deep* below one: nothing of the tree of nodes is down there, so only
    the way back up counts.  The texts, which may name any number of places, take no memory.
    """

    def __init__(self, paths: "Sequence[bytes]") -> None:
        self.parents = [-1]
        self.children: "dict[tuple[int, bytes], int]" = {}
        self.begun = bytearray(len(paths))
        self.ends = [0] * len(paths)
        self.depths = [0] * len(paths)
        self.directories: "list[int]" = []
        self.link_at: "dict[int, int]" = {}
        last, last_node = b"", 0
        for link, path in enumerate(paths):
            directory, _, name = path.rpartition(b"/")
            if directory != last:
                last, last_node = directory, 0
                for part in directory.split(b"/") if directory else ():
                    last_node = self.down(last_node, part)
            self.directories.append(last_node)
            self.link_at[self.down(last_node, name)] = link

    def down(self, node: int, name: bytes) -> int:
        child = self.children.get((node, name))
        if child is None:
            child = self.children[node, name] = len(self.parents)
            self.parents.append(node)
        return child

    def run(self, first: int, texts: "Sequence[bytes]", present: bool) -> None:
        """Judges one link, and before it every unjudged link on its way."""
        self.begun[first] = 1
        stack = [(first, texts[first].split(b"/"), 0, self.directories[first], 0)]
        while stack:
            link, parts, index, here, deep = stack.pop()
            while index < len(parts):
                part = parts[index]
                if part == b".." and deep:
                    deep -= 1
                elif part == b"..":
                    here = self.parents[here] if here >= 0 else _OUTSIDE
                    if here < 0:
                        break
                elif here != _BEYOND and part not in (b"", b"."):
                    below = -1 if deep else self.children.get((here, part), -1)
                    met = self.link_at.get(below)
                    if below < 0:
                        deep += 1
                    elif met is None:
                        here = below
                    elif not self.begun[met]:
                        self.begun[met] = 1
                        stack.append((link, parts, index, here, deep))
                        stack.append((met, texts[met].split(b"/"), 0, self.directories[met], 0))
                        break
                    elif self.begun[met] == 1 or self.ends[met] == _LOOP:
                        here = _LOOP
                        break
                    elif self.ends[met] != _OUTSIDE:
                        here, deep = self.ends[met], self.depths[met]
                    elif present:
                        here = _OUTSIDE
                        break
                    else:
                        here = below
                index += 1
            else:
                self.end(link, here, deep)
                continue
            if here < 0:
                self.end(link, here)

    def end(self, link: int, here: int, deep: int = 0) -> None:
        self.begun[link] = 2
        self.ends[link] = here
        self.depths[link] = deep
