"""Each test's kernels are assembled for every target when the test has ended."""

import pytest

from tests.every_kernel import Kernels

KERNELS = Kernels()


@pytest.fixture(autouse=True)
def every_kernel_assembles():
    """Set up before any other fixture of a test, and so the last to end: settings that the test changed are back."""
    yield
    problems = KERNELS.judge()
    if problems:
        pytest.fail(f"{len(problems)} kernels\n" + "\n".join(problems), pytrace=False)
