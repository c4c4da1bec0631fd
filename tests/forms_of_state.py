"""Schedules of `matmul` with Python state: forms of it one by one, and drawn mixtures.

A form is in a body, and may use what `MODULE` or `COUNTERS` defines beside the function.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from typing import Any

Function = Callable[..., None]


def function(body: str, module: str = "") -> Function:
    """The schedule of `matmul` with this body, defined in a module of its own with these lines."""
    lines = (
        module.strip(),
        "def f(m, A, B, *, a, b):",
        "    (rows, terms), (_, columns) = A.shape, B.shape",
        '    C, V, W = m.tensor("C", rows, columns), m.tensor("V", columns), m.tensor("W", rows, columns)',
        textwrap.indent(textwrap.dedent(body).strip(), "    "),
    )
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile("\n".join(lines), "mine.py", "exec"), names)
    made: Function = names["f"]
    return made


# -- forms of state --------------------------------------------------------------------------------------------------

BODY = """
for i in m.tiles(rows, a):
    if {first}:
        m.delete(m.read(A[i, :]))
    {then}
    m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))
"""

FORMS = {  # (lines before the loop, true in the first iteration alone, what an iteration does then)
    "a flag": ("new = True", "new", "new = False"),
    "a number": ("t = 0", "t == 0", "t += 1"),
    "a number that an expression changes": ("t = 0", "(t := t + 1) == 1", "pass"),
    "the index of the iteration before": ("last = None", "last is None", "last = i"),
    "a name that is deleted": ("new = True", "'new' in dir()", "new = 0; del new"),
    "a list": ("seen = []", "not seen", "seen.append(1)"),
    "an element of a list": ("t = [0]", "t[0] == 0", "t[0] += 1"),
    "a list in a list": ("t = [[], [0]]", "not t[0]", "t[0].append(t)"),
    "a list in a tuple": ("t = (0, [True])", "t[1][0]", "t[1][0] = False"),
    "a dictionary": ("t = {}", "'x' not in t", "t['x'] = 1"),
    "a list in a dictionary": ("t = {'x': []}", "not t['x']", "t['x'].append(1)"),
    "a set": ("t = set()", "1 not in t", "t.add(1)"),
    "a deque": ("import collections; t = collections.deque([1])", "t", "t.clear()"),
    "a Counter": ("import collections; t = collections.Counter()", "t['x'] == 0", "t['x'] += 1"),
    "a bytearray": ("t = bytearray(1)", "t[0] == 0", "t[0] = 1"),
    "an array": ("import numpy; t = numpy.zeros(1)", "t[0] == 0", "t += 1"),
    "an iterator": ("t = iter([True])", "next(t, False)", "pass"),
    "a count": ("import itertools; t = itertools.count()", "next(t) == 0", "pass"),
    "a generator": ("t = (k == 0 for k in range(99))", "next(t)", "pass"),
    "a closure": (
        "t = 0\ndef tick():\n    nonlocal t\n    t += 1\n    return t",
        "tick() == 1",
        "pass",
    ),
    "a lambda": ("t = [1]; pop = lambda: t.pop() if t else 0", "pop()", "pass"),
    "a bound method": ("t = [1]; pop = t.pop; size = t.__len__", "size() and pop()", "pass"),
    "a partial function": ("import functools; pop = functools.partial(dict.pop, {1: 1}, 1, 0)", "pop()", "pass"),
    "a default": ("def once(t=[1]):\n    return t.pop() if t else 0", "once()", "pass"),
    "an attribute of a function": ("def once(): pass\nonce.t = 0", "once.t == 0", "once.t = 1"),
    "an attribute of an object": ("class S: pass\ns = S(); s.t = 0", "s.t == 0", "s.t += 1"),
    "an attribute of a class": ("class S: t = 0", "S.t == 0", "S.t += 1"),
    "a slot": ("class S: __slots__ = ('t',)\ns = S(); s.t = 0", "s.t == 0", "s.t += 1"),
    "a property": (
        "class S:\n    k = 0\n    @property\n    def t(s):\n        s.k += 1\n        return s.k\ns = S()",
        "s.t == 1",
        "pass",
    ),
    "a method": (
        "class S:\n    k = 0\n    def t(s):\n        s.k += 1\n        return s.k\ns = S()",
        "s.t() == 1",
        "pass",
    ),
    "a data class": (
        "import dataclasses\n@dataclasses.dataclass\nclass S:\n    t: int = 0\ns = S()",
        "s.t == 0",
        "s.t += 1",
    ),
    "a namespace": ("import types; s = types.SimpleNamespace(t=0)", "s.t == 0", "s.t += 1"),
    "a list in an object": ("import types; s = types.SimpleNamespace(t=[])", "not s.t", "s.t.append(1)"),
    "an attribute of a module": ("import types; s = types.ModuleType('s'); s.t = 0", "s.t == 0", "s.t += 1"),
    "an attribute of the machine": ("", "not hasattr(m, 'seen')", "m.seen = True"),
    "an attribute of a tensor": ("", "not hasattr(A, 'seen')", "A.seen = True"),
    "the environment": (
        "import os; os.environ.pop('MINE', 0)",
        "'MINE' not in os.environ",
        "os.environ['MINE'] = '1'",
    ),
    "a cache": ("import functools\n@functools.cache\ndef once():\n    m.delete(m.read(B))", "once()", "pass"),
    "chance": ("import random", "random.random() < 0.5", "pass"),
    "a context": (
        "import contextvars; t = contextvars.ContextVar('t', default=0)",
        "t.get() == 0",
        "t.set(1)",
    ),
    "an exception": ("", "'new' not in locals()", "new = 0"),
}  # fmt: skip

BODIES = {  # whole bodies that are wrong
    "enumerate": """
        for k, i in enumerate(m.tiles(rows, a)):
            if k == 0:
                m.delete(m.read(B))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "zip with a list behind": """
        for i, new in zip(m.tiles(rows, a), [True] + 99 * [False]):
            if new:
                m.delete(m.read(B))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "zip with a list before": """
        for new, i in zip([True] + 99 * [False], m.tiles(rows, a)):
            if new:
                m.delete(m.read(B))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "a name that is not known": """
        for i in m.tiles(rows, a):
            try:
                seen
            except NameError:
                seen = m.delete(m.read(B))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "a name that can be deleted once": """
        once = 1
        for i in m.tiles(rows, a):
            try:
                del once
                m.delete(m.read(B))
            except NameError:
                pass
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "while": """
        left = 3
        for i in m.tiles(rows, a):
            while left:
                left -= 1
                m.delete(m.read(B))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "a comprehension": """
        t = []
        [
            (t.append(1) or len(t) == 1 and m.delete(m.read(B)),
             m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B))))
            for i in m.tiles(rows, a)
        ]""",
    "a number of an inner loop": """
        for i in m.tiles(rows, a):
            A_i, t = m.read(A[i, :]), 0
            for j in m.tiles(columns, b):
                if t == 0:
                    m.delete(m.read(B[:, j]))
                t += 1
                m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))""",
    "a number of an outer loop": """
        t = 0
        for i in m.tiles(rows, a):
            A_i, t = m.read(A[i, :]), t + 1
            for j in m.tiles(columns, b):
                if t == 2:
                    m.delete(m.read(B[:, j]))
                m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))""",
    "what comes after a loop": """
        t = 0
        for i in m.tiles(rows, a):
            t += 1
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))
        if t > 1:
            m.read(A)""",
    "a list of the module": """
        for i in m.tiles(rows, a):
            if not STATE:
                STATE.append(m.delete(m.read(B)))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "a number of the module": """
        global N
        N = 0
        for i in m.tiles(rows, a):
            N += 1
            if N == 1:
                m.delete(m.read(B))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "a function of the module": """
        for i in m.tiles(rows, a):
            if bump() == 1:
                m.delete(m.read(B))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "how often it ran": """
        if bump() == 1:
            m.delete(m.read(B))
        for i in m.tiles(rows, a):
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "which tensor is read": """
        for k, i in enumerate(m.tiles(rows, a)):
            m.delete(m.read((A, B)[k % 2]))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
}  # fmt: skip

OTHER_MOVES = {  # as many words in every iteration, and yet not the same
    "a tile of the iteration before": """
        for i in m.tiles(rows, a):
            before = None
            for j in m.tiles(columns, b):
                if before is not None:
                    m.delete(before)
                before = m.read(B[:, j])
                m.write(C[i, j], m.compute(m.read(A[i, :]) @ before))""",
    "the order of two reads": """
        for k, i in enumerate(m.tiles(rows, a)):
            for T in (A, B)[:: 1 - k % 2 * 2]:
                m.delete(m.read(T))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "which operation is computed": """
        from pebblesim.language import exp, log
        for k, i in enumerate(m.tiles(rows, a)):
            C_i = m.compute(m.read(A[i, :]) @ m.read(B))
            C_i[:] = (exp, log)[k % 2](C_i)
            m.write(C[i, :], C_i)""",
    "which iterations may run in parallel": """
        for k, i in enumerate(m.tiles(rows, a)):
            A_i = m.read(A[i, :])
            for j in m.tiles(columns, b, independent=k == 0):
                m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))""",
    "a phase of the first iteration": """
        names = iter(["one", "two", "three"])
        for _ in range(2):
            with m.phase(next(names)):
                m.write(V, 0)
        with m.phase("four" if bump() == 1 else "five"):
            m.write(C, 0)""",
}  # fmt: skip

MODULE = "STATE, N = [], 0\ndef bump():\n    global N\n    N += 1\n    return N"

RIGHT = {  # whole bodies that are right, whatever state they have
    "no state": """
        for i in m.tiles(rows, a):
            A_i = m.read(A[i, :])
            for j in m.tiles(columns, b):
                m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))""",
    "a number that nobody looks at": """
        t = 0
        for k, i in enumerate(m.tiles(rows, a)):
            t, seen = t + 1, [k]
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))
            STATE.append(seen)""",
    "the same either way": """
        for k, i in enumerate(m.tiles(rows, a)):
            if k % 2:
                m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))
            else:
                A_i = m.read(A[i, :])
                B_i = m.read(B)
                C_i = m.compute(A_i @ B_i)
                m.write(C[i, :], C_i)""",
    "a constant flag": """
        doubly = len("ab") == 2
        for i in m.tiles(rows, a):
            if doubly:
                m.delete(m.read(A[i, :]))
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))""",
    "else of a loop": """
        for i in m.tiles(rows, a):
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))
        else:
            m.delete(m.read(A))""",
    "continue": """
        for i in m.tiles(rows, a):
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))
            continue""",
    "a comprehension": """
        [m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B))) for i in m.tiles(rows, a)]""",
    "a loop that is over": """
        tiles = m.tiles(rows, a)
        for i in tiles:
            m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))
        for i in tiles:
            m.delete(m.read(B))""",
    "recursion": """
        def inside(depth):
            for i in m.tiles(rows, a):
                if depth:
                    inside(depth - 1)
                else:
                    m.write(C[i, :], m.compute(m.read(A[i, :]) @ m.read(B)))
        inside(1)""",
    "names of an earlier loop": """
        t = []
        for i in m.tiles(rows, a):
            t = [m.read(A[i, :])]
            m.delete(*t)
        for i in m.tiles(rows, a):
            t.append(t.pop())
            for j in m.tiles(columns, b):
                C_ij = m.zeros(i, j)
                for x in m.tiles(terms, 1):
                    t = [m.read(A[i, x]), m.read(B[x, j])]
                    C_ij += t[0] @ t[1]
                m.write(C[i, j], C_ij)""",
}  # fmt: skip

IMPOSSIBLE = {  # what cannot be traced in the first place
    "break": ("for i in m.tiles(rows, a):\n    m.write(C, 0)\n    break", "was left with break or return"),
    "return": ("for i in m.tiles(rows, a):\n    m.write(C, 0)\n    return", "was left with break or return"),
    "an exception": (
        "try:\n    for i in m.tiles(rows, a):\n        m.write(C, 0)\n        raise KeyError\nexcept KeyError: pass",
        "was left with break or return",
    ),
    "islice": (
        "import itertools\nfor i in itertools.islice(m.tiles(rows, a), 1):\n    m.write(C, 0)",
        "was left with break or return",
    ),
    "next": ("i = next(m.tiles(rows, a))\nm.write(C, 0)", "was left with break or return"),
    "a loop that is kept open": (
        "t = m.tiles(rows, a)\ni = next(t)\nSTATE.append(t)\nm.write(C, 0)",
        "never ended",
    ),
    "a list of indices": ("for i in list(m.tiles(rows, a)):\n    m.read(A[i, :])", "is used after its loop"),
    "an index after its loop": ("for i in m.tiles(rows, a):\n    k = i\nm.read(A[k, :])", "is used after its loop"),
    "two steps": ("t = m.tiles(rows, a)\ni = next(t)\nnext(t, None)\nm.read(A[i, :])", "is used after its loop"),
    "a flag for what stays": (
        "new = True\nfor i in m.tiles(rows, a):\n    if new: B_ = m.read(B)\n    new = False\n    m.read(B)",
        "is already in the cache",
    ),
    "an index that is compared": ("for i in m.tiles(rows, a):\n    if i == rows: m.read(B)", "value of an index"),
    "a dimension that is compared": ("if rows > 3:\n    m.write(C, 0)", "value of an index"),
    "a block that is compared": ("if a > b:\n    m.write(C, 0)", "value of a block size"),
    "a tile that is asked": ("X = m.read(A)\nif X:\n    m.write(C, 0)", "value of a tile"),
}  # fmt: skip

WRONG = BODIES | {
    name: f"{before}\n{BODY.format(first=first, then=then)}" for name, (before, first, then) in FORMS.items()
}


# -- drawn mixtures --------------------------------------------------------------------------------------------------

COUNTERS = """
import collections, contextlib, contextvars, functools, itertools, os, types
import numpy

class Plain:
    n = -1

class Slotted:
    __slots__ = ("n",)

def up(holder):
    holder.n += 1
    return holder.n

def counter():
    n = -1
    def tick():
        nonlocal n
        n += 1
        return n
    return tick

def once():
    pass

N = -1
def bump():
    global N
    N += 1
    return N

@functools.cache
def cached(key):
    return itertools.count()

def in_environment():
    os.environ["MINE"] = str(int(os.environ["MINE"]) + 1)
    return int(os.environ["MINE"])

VARIABLE = contextvars.ContextVar("VARIABLE", default=-1)
def raised():
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()
"""

HOLDERS = (  # (what sets a counter back to the start, what counts on and gives the number, from 0)
    ("{t} = -1", "({t} := {t} + 1)"),
    ("{t} = [-1]", "({t}.__setitem__(0, {t}[0] + 1) or {t}[0])"),
    ("{t} = {{0: -1}}", "({t}.__setitem__(0, {t}[0] + 1) or {t}[0])"),
    ("{t} = numpy.full(1, -1)", "int({t}.__setitem__(0, {t}[0] + 1) or {t}[0])"),
    ("{t} = bytearray(1)", "({t}.__setitem__(0, {t}[0] + 1) or {t}[0] - 1)"),
    ("{t} = []", "({t}.append(0) or len({t}) - 1)"),
    ("{t} = collections.deque([0])", "({t}.appendleft({t}[0] + 1) or {t}[1])"),
    ("{t} = collections.Counter(x=-1)", "({t}.update('x') or {t}['x'])"),
    ("{t} = itertools.count()", "next({t})"),
    ("{t} = iter(range(10**6))", "next({t})"),
    ("{t} = (each for each in itertools.count())", "next({t})"),
    ("{t} = counter()", "{t}()"),
    ("{t} = functools.partial(next, itertools.count())", "{t}()"),
    ("{t} = Plain()", "up({t})"),
    ("Plain.n = -1", "up(Plain)"),
    ("{t} = Slotted(); {t}.n = -1", "up({t})"),
    ("{t} = types.SimpleNamespace(n=-1)", "up({t})"),
    ("{t} = types.ModuleType('own'); {t}.n = -1", "up({t})"),
    ("once.n = -1", "up(once)"),
    ("m.n = -1", "up(m)"),
    ("A.n = -1", "up(A)"),
    ("VARIABLE.set(-1)", "raised()"),
    ("cached.cache_clear()", "next(cached('x'))"),
    ("os.environ['MINE'] = '-1'", "in_environment()"),
    ("", "bump()"),  # what is never set back
    ("", "next(cached(0))"),
)  # fmt: skip

CONDITIONS = (
    "{x} == 0",
    "{x} == {k}",
    "{x} % {k} == 0",
    "{x} % {k} == {k} - 1",
    "{x} < {k}",
    "{x} >= {k}",
    "{x} >= 0",
    "{x} < 0",
    "{x} % {k} < {k}",
    "[{x}]",
)

MIXTURE = """
{start}
for ki, i in enumerate(m.tiles(rows, a)):
    {outer}
    {before}
    A_i = m.read(A[i, :])
    for kj, j in enumerate(m.tiles(columns, b)):
        {inside}
        m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))
    {behind}
{end}
"""

MOVES = {  # each moves words of its own, so that equal words mean equal moves
    "before": "m.delete(m.read(B))",
    "inside": "m.write(W[i, j], 0)",
    "behind": "m.write(V, 0)",
    "end": "m.delete(m.read(A))",
}


def mixture(draw: random.Random) -> str:
    """The body of a schedule whose moves depend on counters."""
    lines: dict[str, str] = dict.fromkeys((*MOVES, "start", "outer"), "pass")
    for number, place in enumerate(draw.sample(list(MOVES), draw.randint(1, 3))):
        reset, counts = (text.format(t=f"t{number}") for text in draw.choice(HOLDERS))
        lines[draw.choice(["start", "outer"]) if place == "inside" else "start"] += f"; {reset or 'pass'}"
        if place != "end" and draw.random() < 0.2:
            counts = "kj" if place == "inside" else "ki"
        condition = draw.choice(CONDITIONS).format(x=counts, k=draw.randint(2, 4))
        lines[place] = f"if {condition}: {MOVES[place]}"
    return MIXTURE.format(**lines)
