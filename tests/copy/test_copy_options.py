"""Options of copies: values of another type, and options of which a path has no use, are refused where they are given."""

import pytest
import tilejit as tile

ISSUE = "with tile.elect():\n        bar.arrive_expect_tx(s.nbytes)\n        tile.copy_async(s, {source}, mbar=bar, {option})"


def compiled(body: str, target: str = "sm_100a", **options):
    text = f"def k(A, X):\n    s = tile.alloc((8, 64), A.dtype)\n    bar = tile.mbarrier()\n    {body}\n"
    return tile.jit(source=text, num_warps=1, **options).compile(tile.ArraySpec((64, 64), "float16"), tile.ArraySpec((2, 9, 7, 64), "float16"), target=target)


@pytest.mark.parametrize("option, words", [
    ("prefetch=128.0", "prefetch is 64, 128 or 256 bytes of L2, not 128.0"),
    ("l2_promotion=64.0", "l2_promotion is 0, 64, 128 or 256 bytes, not 64.0"),
    ("cta_group=1.0", "cta_group is 1 or 2, not 1.0"),
    ("prefetch_map=1", "prefetch_map is True or False, not 1"),
    ("multicast=True", "multicast is a mask of the cluster's ranks, 1 to 65535, not True"),
])
def test_a_number_of_another_type_is_no_value_of_an_option(option, words):
    for body in (f"tile.copy_async(s, A[0:8, 0:64], {option})", ISSUE.format(source="A[0:8, 0:64]", option=option)):
        with pytest.raises(tile.CompilationError) as error:
            compiled(body, cluster=(2, 1, 1))
        assert str(error.value).splitlines()[0] == words


@pytest.mark.parametrize("source", ["A[0:8, 0:64]", "tile.tensor_map(A[0:8, 0:64])[8:16, 0:64]", "A.take((0, 1, 2, 3, 4, 5, 6, 7))[:, 0:64]",
                                    "tile.im2col(X, (3, 3))[0:8, 0, 0, 0:64]"])
def test_a_shape_is_an_option_of_copies_to_tensor_memory_only(source):
    assert compiled(ISSUE.format(source=source, option="shape=None")).copies[0].variant == "tma"
    with pytest.raises(tile.DispatchError) as error:
        compiled(ISSUE.format(source=source, option="shape='4x256b'"))
    assert [line for line in str(error.value).splitlines() if line.startswith("  tma: ")][0] == "  tma: needs no shape="


@pytest.mark.parametrize("region", ["A[0:8, 0:64]", "A[0:8, 0:32]", "A.take((0, 1, 2, 3))[:, 0:64]"])
def test_a_prefetch_takes_an_l2_policy_and_no_operator_of_cp_async(region):
    for cache in ("ca", "cg"):
        with pytest.raises(tile.DispatchError, match=f"an L2 policy as the cache option: cache='{cache}'"):
            compiled(f"tile.prefetch({region}, cache={cache!r})")


def test_a_prefetch_of_a_tensor_map_s_box_is_refused():
    with pytest.raises(tile.CompilationError, match="prefetch cannot use a tensor map: move its boxes with tile.copy_async, or name the array itself"):
        compiled("m = tile.tensor_map(A[0:8, 0:64])\n    tile.prefetch(m[0:8, 0:64])")
