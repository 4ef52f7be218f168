"""Map the folders at the top of the repository to the packages of `gristmill`, recipes among them.

The links in `gristmill/` say the same to tools that read the source. A build does not rely on them: pip unpacks a .zip
without links, and so does Git on Windows.
"""

from setuptools import find_namespace_packages, setup

ROOMS = ("kernels", "mixing", "shards", "trainer", "classifiers", "stages", "pipeline", "recipes")

setup(
    package_dir={"gristmill": "gristmill", **{f"gristmill.{room}": room for room in ROOMS}},
    packages=[
        "gristmill",
        *(f"gristmill.{name}" for name in find_namespace_packages(include=[*ROOMS, *(f"{room}.*" for room in ROOMS)])),
    ],
)
