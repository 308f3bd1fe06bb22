"""Makes failed assertions in the shared helpers show both sides of their comparisons."""

import pytest

pytest.register_assert_rewrite("faulty")
