"""What pyproject.toml cannot say: a wheel that carries compiled kernels.

`make wheel` sets DBSPARK_COMPILED_KERNELS to a folder of compiled kernels (`dbspark.kernels.package`). They become part
of the package, and the wheel is then one for this platform and this version of Python.
"""

import os
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

COMPILED = os.environ.get("DBSPARK_COMPILED_KERNELS")


class BuildWithKernels(build_py):
    """Copies the modules, and the compiled kernels beside them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "dbspark", "kernels", "compiled")
        shutil.rmtree(target, ignore_errors=True)  # those of an earlier build
        if COMPILED:
            shutil.copytree(COMPILED, target)


class PlatformDistribution(Distribution):
    """Has machine code in it if it carries kernels."""

    def has_ext_modules(self) -> bool:
        return bool(COMPILED)


setup(cmdclass={"build_py": BuildWithKernels}, distclass=PlatformDistribution)
