"""Build the compiled core; everything else stands in pyproject.toml."""

from setuptools import Extension, setup

CORE = ["cap", "gate", "owner", "segment", "wait"]
HEADERS = ["approximate", "atomics", "counters", "layout", "tally", *CORE]

setup(
    ext_modules=[
        Extension(
            "gatecount._core",
            ["ext/_core.pyx", *(f"ext/{name}.c" for name in CORE)],
            include_dirs=["ext"],
            depends=[
                *(f"ext/_{name}.pxi" for name in ("c", "gate", "permit", "stats", "wait", "words")),
                *(f"ext/{name}.h" for name in HEADERS),
            ],
            extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
        )
    ]
)
