"""Where the packages of `gristmill` lie: the folders at the top of the repository are its rooms (docs/design.md), and
recipes lie among them."""

from setuptools import find_namespace_packages, setup

ROOMS = ("kernels", "mixing", "shards", "trainer", "classifiers", "stages", "pipeline", "recipes")

setup(
    package_dir={"gristmill": "gristmill", **{f"gristmill.{room}": room for room in ROOMS}},
    packages=[
        "gristmill",
        *(f"gristmill.{name}" for name in find_namespace_packages(include=[*ROOMS, *(f"{room}.*" for room in ROOMS)])),
    ],
)
