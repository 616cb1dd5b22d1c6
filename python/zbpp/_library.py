# SPDX-License-Identifier: Apache-2.0
"""Calls libzbpp_c through ctypes, which releases the GIL for the time of a call.

`zbpp_c.h` says what each function does.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


class Error(ValueError):
    """Says in one line what is wrong, where, and what would be right.

    `code` is the kind of fault: "bad argument", "bad format", "unsupported problem" (the policy
    cannot schedule it, or nothing fits the memory), "refused program" (the order cannot run), or
    "unexpected".
    """

    def __init__(self, message: str, code: str = "bad argument") -> None:
        super().__init__(message)
        self.code = code


_OUT_OF_MEMORY = 5
_CODES = {
    1: "bad argument",
    2: "bad format",
    3: "unsupported problem",
    4: "refused program",
}


class Text(ctypes.Structure):
    """A text as the library takes it. It keeps the bytes it is made of."""

    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]

    def __init__(self, text: str = "") -> None:
        # The library refuses what is not UTF-8, and says where.
        data = text.encode("utf-8", "surrogatepass")
        super().__init__(data, len(data))


class _Progress(ctypes.Structure):
    _fields_ = [
        ("cost", ctypes.c_int64),
        ("lower_bound", ctypes.c_int64),
        ("spent", ctypes.c_double),
    ]


def _load() -> ctypes.CDLL:
    path = os.environ.get("ZBPP_C_LIBRARY") or Path(__file__).with_name("libzbpp_c.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as wrong:
        raise ImportError(
            f"zbpp: cannot load {path} ({wrong}); install the wheel, or set ZBPP_C_LIBRARY to the "
            "libzbpp_c.so that CMake builds with -DZBPP_PYTHON=ON"
        ) from None

    out = ctypes.POINTER(ctypes.c_void_p)
    control = ctypes.c_void_p
    for name, *arguments in (
        ("plan", Text, Text, ctypes.c_double, ctypes.c_uint64, control),
        ("find_plan", Text, Text, control),
        ("find_plans", Text, ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t, Text, control),
        ("policies",),
        ("simulate", Text, Text, Text),
        ("lower_bound", Text),
        ("verify", Text, Text),
        ("verify_plan", Text),
        ("read_problem", Text),
        ("read_plan", Text),
        ("csv", Text, ctypes.c_int),
        ("svg", ctypes.POINTER(Text), ctypes.c_size_t, ctypes.c_int),
    ):
        function = getattr(library, "zbpp_" + name)
        function.argtypes = [*arguments, out]
        function.restype = ctypes.c_int
    library.zbpp_search_new.argtypes = []
    library.zbpp_search_new.restype = control
    library.zbpp_search_progress.argtypes = [control, ctypes.POINTER(_Progress)]
    library.zbpp_search_progress.restype = None
    library.zbpp_version.argtypes = []
    library.zbpp_version.restype = ctypes.c_char_p
    for name, argument in (("search_stop", control), ("search_free", control), ("free", control)):
        function = getattr(library, "zbpp_" + name)
        function.argtypes = [argument]
        function.restype = None
    return library


_library = _load()


def version() -> str:
    """Returns the version of the library."""
    return _library.zbpp_version().decode()


def call(name: str, *arguments: object) -> str:
    """Calls `zbpp_<name>` and returns its answer.

    Raises Error with the line of the library, or MemoryError.
    """
    out = ctypes.c_void_p()
    try:
        status = getattr(_library, "zbpp_" + name)(*arguments, ctypes.byref(out))
        text = ctypes.string_at(out.value).decode("utf-8", "replace") if out.value else ""
    finally:
        _library.zbpp_free(out)
    if status == _OUT_OF_MEMORY:
        raise MemoryError(text or "out of memory")
    if status != 0:
        raise Error(text or "out of memory", _CODES.get(status, "unexpected"))
    return text


class Search:
    """Controls one search from another thread."""

    def __init__(self) -> None:
        self._free = _library.zbpp_search_free  # modules may be gone when Python ends
        self.handle = _library.zbpp_search_new()
        if not self.handle:
            raise MemoryError("out of memory")

    def __del__(self) -> None:
        self._free(self.handle)

    def stop(self) -> None:
        """Ends the search, which answers with the best so far."""
        _library.zbpp_search_stop(self.handle)

    def progress(self) -> tuple[int, int, float]:
        """Returns cost and lower bound in ns, and the share of the budget that is spent."""
        now = _Progress()
        _library.zbpp_search_progress(self.handle, ctypes.byref(now))
        return now.cost, now.lower_bound, now.spent
