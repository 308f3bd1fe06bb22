"""What the cache returns, and what happens if it is off, damaged, full or unwritable."""

import json
import multiprocessing
import os
import warnings
import zlib

import pytest
import tilejit as tile
from cache_bench import SCALE, STAGE, python, specs
from tilejit import manifest
from tilejit.errors import ToolchainError
from tilejit.runtime.store import Store, open_store

COMPILED, HIT = "lower assemble", ""


def compile_scale(module, *arrays, **options):
    return module.scale.compile(*(arrays or specs()), **{"N": 128, **options})


def compile_stage(module):
    return module.stage.compile(*specs(256, 64, "float16"))


# -- what a hit returns --------------------------------------------------------------------------------------------------

def test_a_kernel_loaded_from_the_cache_has_the_records_of_the_compiled_one(bench):
    cold, warm = compile_stage(bench.load(STAGE)), compile_stage(bench.load(STAGE))
    assert bench.stages() == COMPILED
    for name in ("name", "target", "signature", "key", "graph", "llvm_ir", "ptx", "cubin", "registers", "spills", "shared_bytes", "assembler",
                 "tensor_maps", "warnings", "recipe", "written"):
        assert getattr(warm, name) == getattr(cold, name), name
    assert list(warm.compile_time) == ["cache"] and warm.explain().splitlines()[:-1] == cold.explain().splitlines()[:-1]


def test_the_attributes_of_a_copy_plan_survive_the_cache(bench):
    cold, warm = compile_stage(bench.load(STAGE)), compile_stage(bench.load(STAGE))
    assert len(cold.copies) == len(warm.copies) == 2
    for one, other in zip(cold.copies, warm.copies):
        assert [getattr(one, n) for n in one.__dataclass_fields__ if n != "plan"] == [getattr(other, n) for n in one.__dataclass_fields__ if n != "plan"]
    plan, back = cold.copies[0].plan, warm.copies[0].plan
    assert back.issues == plan.issues and back.instructions == plan.instructions
    for name in ("box", "rank", "global_dim", "global_strides", "swizzle", "dtype", "argument"):
        assert getattr(back.tensor_map, name) == getattr(plan.tensor_map, name)


def test_access_records_survive_the_cache(bench):
    cold, warm = (compile_scale(bench.load(), *specs(127, 64), N=1024) for _ in range(2))
    assert bench.stages() == COMPILED and warm.accesses == cold.accesses
    assert all("needs bounds" in a.declined[0][1] for a in cold.accesses) and len(cold.accesses) == 2
    assert warm.explain().splitlines()[:-1] == cold.explain().splitlines()[:-1]


def test_tensor_maps_of_a_cached_kernel_describe_the_arrays_of_the_call(bench):
    compile_stage(bench.load(STAGE))
    warm = bench.load(STAGE).stage.compile(*specs(512, 32, "float16"))
    assert warm.tensor_maps[0].global_dim == (64, 32, 8) and bench.stages() == COMPILED


def test_texts_of_the_stages_are_read_from_the_cache_lazily(bench, monkeypatch):
    compile_scale(bench.load())
    read = []
    get = Store.get
    monkeypatch.setattr(Store, "get", lambda self, kind, key: read.append(kind) or get(self, kind, key))
    warm = compile_scale(bench.load())
    assert read == ["manifest", "code"]
    assert ".visible .entry scale" in warm.ptx and "define" in warm.llvm_ir and warm.graph.startswith("kernel scale")
    assert read == ["manifest", "code", "texts"]


def test_texts_missing_from_the_cache_are_generated_again(bench):
    cold = compile_scale(bench.load())
    warm = compile_scale(bench.load())
    open_store().clear()
    assert warm.ptx == cold.ptx


def test_a_cached_kernel_can_be_simulated(bench):
    import numpy as np
    compile_scale(bench.load())
    module = bench.load()
    compile_scale(module)
    x = np.random.rand(4, 128).astype("float32")
    y = np.empty_like(x)
    module.scale[(4,)](x, y, N=128)
    assert np.array_equal(y, 2 * x) and bench.stages() == f"{COMPILED} lower"


def test_warnings_and_static_prints_are_repeated_on_a_cache_hit(bench, capfd):
    text = SCALE.replace("    i = tile", "    tile.static_print('N is', N)\n    i = tile").replace("helper(tile.load(x[i, 0:N]))", "tile.max(tile.load(x[i, 0:N]))")
    with pytest.warns(tile.TileWarning, match="scale: .*out of bounds") as told:
        first = compile_scale(bench.load(text), *specs(100), num_warps=1)
    with pytest.warns(tile.TileWarning) as again:
        second = compile_scale(bench.load(text), *specs(100), num_warps=1)
    assert bench.stages() == COMPILED and first.warnings == second.warnings
    assert capfd.readouterr().out == "N is 128\n" * 2 and [str(w.message) for w in told] == [str(w.message) for w in again]


def test_expectations_are_checked_on_cache_hits(bench):
    compile_stage(bench.load(STAGE))
    module = bench.load(STAGE)
    module.stage.assert_variant("A", "ldgsts")
    with pytest.raises(tile.CompilationError, match="assert_variant wants the copy of A to be 'ldgsts'"):
        compile_stage(module)
    assert bench.stages() == COMPILED


def test_an_expectation_selects_lines_by_the_argument_s_whole_name(bench):
    """Not lines where the name is only part of another identifier."""
    module = bench.load(STAGE)  # its last line copies from sA to B
    module.stage.assert_variant("A", "tma")
    assert [c.variant for c in compile_stage(module).copies] == ["tma", "vectorised"]
    with pytest.raises(tile.CompilationError, match="assert_variant wants the copy of sA to be 'tma', and it was lowered as 'vectorised'"):
        module.stage.assert_variant("sA", "tma")


def test_an_expectation_selects_the_copies_of_an_argument_however_they_are_written():
    """Over several lines, under another name, in a helper."""
    @tile.jit
    def helped(X, s):
        tile.copy_async(s, X[0:64, 0:32]).wait()

    @tile.jit
    def lines(A, B):
        s = tile.alloc((64, 32), A.dtype)
        tile.copy_async(
            s,
            A[0:64, 0:32]).wait()
        tile.copy(B[0:64, 0:32], s)

    @tile.jit
    def renamed(A, B):
        s, part = tile.alloc((64, 32), A.dtype), A[0:64, 0:32]
        tile.copy_async(s, part).wait()
        tile.copy(B[0:64, 0:32], s)

    @tile.jit
    def inside(A, B):
        s = tile.alloc((64, 32), A.dtype)
        helped(A, s)
        tile.copy(B[0:64, 0:32], s)

    x = tile.ArraySpec((64, 32), "float32")
    for kernel in (lines, renamed, inside):
        assert [c.buffers for c in kernel.compile(x, x).copies] == [("s", "A"), ("B", "s")]
        kernel.assert_variant("B", "vectorised")
        with pytest.raises(tile.CompilationError, match="assert_variant wants the copy of A to be 'tma', and it was lowered as 'ldgsts'"):
            kernel.assert_variant("A", "tma")


def test_an_expectation_for_a_name_without_copies_fails_with_a_message(bench):
    module = bench.load(STAGE)
    module.stage.assert_variant("sB", "tma")
    with pytest.raises(tile.CompilationError, match=r"assert_variant wants copies of s?[AB] to be 'tma', "
                                                     r"and stage has no copy of that name \(did you mean 's?[AB]'\?\)"):
        compile_stage(module)
    compile_stage(bench.load(STAGE))
    with pytest.raises(tile.CompilationError, match="stage has no copy of that name"):
        compile_stage(module)


@pytest.mark.parametrize("name", [3, None, ""])
def test_an_expectation_needs_the_name_of_an_array_or_allocation(bench, name):
    with pytest.raises(tile.LaunchError, match=f"assert_variant takes the name of an array or of an allocation of the kernel, as in 'A', not {name!r}"):
        bench.load(STAGE).stage.assert_variant(name, "tma")


def test_register_and_spill_limits_are_checked_on_cache_hits(bench):
    compile_scale(bench.load())
    bench.stages()
    compile_scale(bench.load(), spills=0)
    assert bench.stages() == "lower"


def test_the_log_says_what_was_compiled_and_why(bench, monkeypatch, capfd):
    monkeypatch.setenv("TILEJIT_LOG", "1")
    module = bench.load()
    compile_scale(module, N=512)
    compile_scale(module, *specs(130), N=512)
    module.FACTOR = 7.0
    compile_scale(module, N=512)
    compile_scale(bench.load(), N=512)
    compile_scale(bench.load(SCALE.replace("2.0", "9.0")), N=512)
    assert capfd.readouterr().err.splitlines() == [
        "tilejit: compiled scale: first call", "tilejit: compiled scale: not: x.strides[0] is a multiple of 4 elements",
        "tilejit: compiled scale: FACTOR has changed",
        "tilejit: loaded scale from the cache", "tilejit: compiled scale: FACTOR has changed"]


# -- off, damaged, full, unwritable ------------------------------------------------------------------------------------------

def test_no_cache_disables_the_cache(bench, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")
    compile_scale(bench.load())
    compile_scale(bench.load())
    assert bench.stages() == f"{COMPILED} {COMPILED}" and not (tmp_path / "cache" / "manifest").exists()


@pytest.mark.parametrize("name", ["TILEJIT_DUMP", "TILEJIT_OVERRIDE"])
def test_dump_and_override_run_every_stage(bench, monkeypatch, tmp_path, name):
    compile_scale(bench.load())
    (tmp_path / "stages").mkdir()
    monkeypatch.setenv(name, str(tmp_path / "stages"))
    compile_scale(bench.load())
    assert bench.stages() == f"{COMPILED} {COMPILED}"


def test_unusable_dump_and_override_paths_are_reported(bench, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "scale.ll").write_bytes(b"\xff")
    for name, place, words in (("DUMP", tmp_path / "file", "TILEJIT_DUMP=.*file cannot be written"), ("OVERRIDE", tmp_path / "file", "is no folder"),
                               ("OVERRIDE", tmp_path / "absent", "TILEJIT_OVERRIDE=.*absent is no folder"),
                               ("OVERRIDE", tmp_path, r"TILEJIT_OVERRIDE: .*scale\.ll cannot be read")):
        monkeypatch.setenv(f"TILEJIT_{name}", str(place))
        with pytest.raises(ToolchainError, match=words):
            compile_scale(bench.load())
        monkeypatch.delenv(f"TILEJIT_{name}")


@pytest.mark.parametrize("kind, stages", [("manifest", "lower"), ("code", COMPILED), ("texts", HIT)])
@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: b"", lambda data: data[:90] + bytes([data[90] ^ 1]) + data[91:]])
def test_a_damaged_entry_is_compiled_again(bench, tmp_path, kind, stages, damage):
    cold = compile_scale(bench.load())
    bench.stages()
    file, = (f for f in (tmp_path / "cache" / kind).rglob("*") if f.is_file())
    file.write_bytes(damage(file.read_bytes()))
    warm = compile_scale(bench.load())
    assert bench.stages() == stages and warm.cubin == cold.cubin and warm.ptx == cold.ptx
    bench.stages()
    compile_scale(bench.load())
    assert bench.stages() == HIT


@pytest.mark.parametrize("kind, stages", [("manifest", "lower"), ("code", COMPILED), ("texts", HIT)])
@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b"[{}]", b"7", b"null", b"\xff\xfe",
                                  b'[{"captured": [], "lowered": {"recipe": {"guards": 3}}}]',
                                  b'[{"captured": {"values": 1}, "lowered": {"recipe": {"guards": [[]]}}, "code": 1}]'])
def test_an_intact_entry_of_another_form_is_compiled_again(bench, tmp_path, kind, stages, text):
    cold = compile_scale(bench.load())
    bench.stages()
    file, = (f for f in (tmp_path / "cache" / kind).rglob("*") if f.is_file())
    open_store().put(kind, file.name, zlib.compress(text) if kind == "texts" else text)
    warm = compile_scale(bench.load())
    assert bench.stages() == stages and warm.cubin == cold.cubin and warm.ptx == cold.ptx
    bench.stages()
    compile_scale(bench.load())
    assert bench.stages() == HIT


def test_a_key_has_a_bounded_number_of_manifests(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(manifest, "MANIFESTS_PER_KEY", 3)
    for factor in range(5):
        compile_scale(bench.load(SCALE.replace("2.0", f"{factor}.5")))
    file, = (f for f in (tmp_path / "cache" / "manifest").rglob("*") if f.is_file())
    kept = json.loads(open_store().get("manifest", file.name))
    assert [m["captured"]["values"] for m in kept] != [] and len(kept) == 3
    bench.stages()
    compile_scale(bench.load(SCALE.replace("2.0", "4.5")))
    assert bench.stages() == HIT


def test_an_unwritable_folder_costs_one_warning(bench, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "file" / "cache"))  # root cannot write there either
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one, other = compile_scale(bench.load()), compile_stage(bench.load(STAGE))
    assert one.cubin and other.ptx and bench.stages() == f"{COMPILED} {COMPILED}"
    assert [str(w.message).split(" (")[0] for w in caught] == [f"tilejit's cache {tmp_path / 'file' / 'cache'} cannot be used"]


def test_the_least_recently_used_entries_are_evicted_once_a_day(bench, monkeypatch):
    monkeypatch.setattr(manifest, "KEPT_BYTES", 0)
    compile_scale(bench.load())
    assert open_store().entries() == []
    compile_scale(bench.load())
    assert open_store().entries() != [] and bench.stages() == f"{COMPILED} {COMPILED}"


def _compile_many(file: str, folder: str, seed: int) -> list:
    os.environ["TILEJIT_CACHE_DIR"] = folder
    namespace = {"__name__": "kernels"}
    text = open(file).read()
    exec(compile(text, file, "exec"), namespace)
    found = []
    for n in range(8):
        namespace["FACTOR"] = float((n * (seed + 3)) % 4)
        found.append((namespace["FACTOR"], compile_scale(type("module", (), namespace)).cubin))
    return found


def test_concurrent_processes_get_the_right_kernels(bench, tmp_path):
    bench.load()
    context = multiprocessing.get_context("fork")
    with context.Pool(4) as pool:
        results = pool.starmap(_compile_many, [(str(bench.file), str(tmp_path / "cache"), seed) for seed in range(4)])
    by_factor = {}
    for factor, cubin in sum(results, []):
        by_factor.setdefault(factor, set()).add(cubin)
    assert len(by_factor) == 4 and all(len(cubins) == 1 for cubins in by_factor.values())
    assert len(set.union(*by_factor.values())) == 4


# -- a second process --------------------------------------------------------------------------------------------------------

FORBIDDEN = ("tilejit.api", "tilejit.ops", "tilejit.frontend.building", "tilejit.frontend.walker", "tilejit.passes", "tilejit.compile",
             "tilejit.emit", "tilejit.toolchain.llvm", "tilejit.toolchain.assembler", "llvmlite", "numba", "subprocess")
SECOND = f"""
import sys
import numpy  # which loads subprocess itself on Python 3.10
before = set(sys.modules)
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if any(name == f or name.startswith(f + ".") for f in {FORBIDDEN!r}):
            raise ImportError(name + " is not to be loaded")
if WARM:
    sys.meta_path.insert(0, Refuse())
import runpy, tilejit as tile
kernel = runpy.run_path(FILE)["stage"]
compiled = kernel.compile(tile.ArraySpec((64, 256), "float16"), tile.ArraySpec((64, 256), "float16"))
assert not WARM or not [m for m in {FORBIDDEN!r} if m in sys.modules and m not in before]
print(compiled.key, len(compiled.cubin), hash(compiled.cubin), compiled.copies[0].variant, len(compiled.ptx), list(compiled.compile_time)[-1])
"""


def test_a_second_process_does_not_load_the_compiler(bench):
    bench.load(STAGE)
    run = lambda warm: python(f"WARM = {warm}; FILE = {str(bench.file)!r}" + SECOND, PYTHONHASHSEED="0").stdout.split()
    cold, warm = run(False), run(True)
    assert warm[:-1] == cold[:-1] and (cold[-1], warm[-1]) == ("assemble", "cache")


def test_keys_do_not_depend_on_the_hash_seed(bench):
    text = "import tilejit as tile\nimport enum\nclass Mode(enum.Enum):\n    A = frozenset(('x', 'y', 'z'))\n    B = 2\n" + SCALE.replace(
        "    i = tile", "    mode = Mode.B\n    i = tile")
    bench.load(text)
    code = f"import runpy, tilejit as tile; k = runpy.run_path({str(bench.file)!r})['scale']; a = tile.ArraySpec((64, 128), 'float32'); print(list(k.compile(a, a, N=128).compile_time)[-1])"
    assert [python(code, PYTHONHASHSEED=seed).stdout.strip() for seed in "12"] == ["assemble", "cache"]
