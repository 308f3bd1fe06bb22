"""LLVM IR to machine code of this host, which is loaded without LLVM."""

import ctypes
import subprocess
import sys

import pytest
from tilejit.errors import ToolchainError
from tilejit.toolchain import executable, llvm

CALL_THROUGH = """
define i64 @f(ptr %table, i64 %x) {
  %function = load ptr, ptr %table
  %y = call i64 %function(i64 %x)
  %z = add i64 %y, 1
  ret i64 %z
}
"""


def test_native_code_runs_and_calls_through_pointers():
    address = llvm.compile_native(CALL_THROUGH, "f")
    triple = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda value: 3 * value)
    table = (ctypes.c_void_p * 1)(ctypes.cast(triple, ctypes.c_void_p).value)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(address)
    assert function(ctypes.addressof(table), 14) == 43


def test_the_code_runs_in_a_process_that_never_loads_llvm():
    code = llvm.machine_code("define i64 @f(i64 %x) {\n%y = mul i64 %x, 7\nret i64 %y\n}", "f")
    program = ("import ctypes, sys\nfrom tilejit.toolchain import executable\n"
               f"f = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(executable.load({code!r}))\n"
               "assert 'llvmlite' not in sys.modules\nprint(f(6))\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "42"


@pytest.mark.parametrize("text", [
    "declare i64 @getpid(i64)\ndefine i64 @f(i64 %x) {\n%y = call i64 @getpid(i64 %x)\nret i64 %y\n}",
    "@g = global i64 3\ndefine i64 @f(i64 %x) {\n%y = load i64, ptr @g\nret i64 %y\n}",
])
def test_code_that_references_an_external_symbol_is_refused(text):
    with pytest.raises(ToolchainError, match="relocation"):
        llvm.machine_code(text, "f")


def test_loaded_code_is_not_writable():
    address = executable.load(llvm.machine_code("define i64 @f(i64 %x) {\nret i64 %x\n}", "f"))
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if low <= address < high:
                assert line.split()[1] == "r-xp"
                return
    raise AssertionError("the code is not mapped")
