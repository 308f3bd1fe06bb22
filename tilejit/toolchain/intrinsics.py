"""Tables of the LLVM intrinsics and types that the NVPTX backend is known to lower.

The backend reacts to an operation that it has no pattern for with `abort` or `exit`, which Python cannot catch. So IR
text is checked against these tables before LLVM sees it. tests/toolchain/test_intrinsics.py compiles every row for
every target that it allows, in a child process."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from ..errors import ToolchainError

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_103a", "sm_120a")

INTEGERS = ("i1", "i8", "i16", "i32", "i64", "i128")
FLOATS = ("f16", "bf16", "f32", "f64")

# Overloaded by element type: names, element types, whether vectors of them lower as well.
ELEMENTWISE = (
    ("smax smin umax umin",                     INTEGERS,                         True),
    ("abs ctlz cttz ctpop bitreverse",          INTEGERS,                         True),
    ("fshl fshr",                               INTEGERS,                         True),
    ("sadd.sat ssub.sat uadd.sat usub.sat",     INTEGERS,                         True),
    ("bswap",                                   ("i16", "i32", "i64"),            False),  # <2 x i32> aborts on sm_100a
    ("sadd.with.overflow uadd.with.overflow",   INTEGERS,                         False),
    ("ssub.with.overflow usub.with.overflow",   INTEGERS,                         False),
    ("smul.with.overflow umul.with.overflow",   INTEGERS,                         False),
    ("expect",                                  INTEGERS,                         False),
    ("fma fmuladd",                             FLOATS,                           True),
    ("sqrt fabs copysign",                      FLOATS,                           True),
    ("floor ceil trunc rint nearbyint round roundeven", FLOATS,                   True),
    ("minnum maxnum minimum maximum minimumnum maximumnum", FLOATS,               True),
    ("exp2",                                    ("f16", "bf16", "f32"),           True),
    ("canonicalize",                            ("f16", "f32", "f64"),            False),
)

# These lower only with the flag `afn` (or `fast`) on the call, to the approximate instructions of the hardware.
APPROXIMATE_ONLY = tuple(f"{name}.{kind}" for name in ("sin", "cos", "tanh") for kind in ("f16", "bf16", "f32"))

# Overloaded by result and operand type: names, result types, operand types.
CONVERSIONS = (
    ("fptosi.sat fptoui.sat", ("i8", "i16", "i32", "i64"), FLOATS),
)

# Patterns of other names, without "llvm."; pointers are overloaded by address space.
PLAIN = (
    r"assume|trap|debugtrap|donothing|sideeffect|readcyclecounter"
    r"|memcpy\.p\d\.p\d\.i(32|64)|memmove\.p\d\.p\d\.i(32|64)|memset\.p\d\.i(32|64)"
    r"|lifetime\.(start|end)\.p[05]|prefetch\.p[01]|ptrmask\.p\d\.i64"
    r"|vector\.reduce\.(add|mul|and|or|xor|smax|smin|umax|umin)\.v\d+i(8|16|32|64)"
    r"|vector\.reduce\.(fadd|fmul|fmax|fmin|fmaximum|fminimum)\.v\d+(f16|bf16|f32|f64)"
    r"|experimental\.noalias\.scope\.decl|dbg\.(declare|value|label)"
)

# nvvm.*: names (braces list alternatives), signature, first architecture. `!` before a type marks an immediate operand.
NVVM = (
    ("read.ptx.sreg.{tid,ntid,ctaid,nctaid}.{x,y,z}",                  "i32 ()",                        80),
    ("read.ptx.sreg.{laneid,warpid,nwarpid,smid,nsmid,warpsize}",      "i32 ()",                        80),
    ("read.ptx.sreg.lanemask.{eq,le,lt,ge,gt}",                        "i32 ()",                        80),
    ("read.ptx.sreg.{dynamic_smem_size,total_smem_size,clock}",        "i32 ()",                        80),
    ("read.ptx.sreg.{clock64,globaltimer}",                            "i64 ()",                        80),
    ("read.ptx.sreg.{clusterid,nclusterid}.{x,y,z}",                   "i32 ()",                        90),
    ("read.ptx.sreg.cluster.{ctaid,nctaid}.{x,y,z}",                   "i32 ()",                        90),
    ("read.ptx.sreg.cluster.{ctarank,nctarank}",                       "i32 ()",                        90),
    ("shfl.sync.{up,down,bfly,idx}.i32",                               "i32 (i32, i32, i32, i32)",      80),
    ("shfl.sync.{up,down,bfly,idx}.f32",                               "float (i32, float, i32, i32)",  80),
    ("shfl.sync.{up,down,bfly,idx}.i32p",                              "{i32, i1} (i32, i32, i32, i32)", 80),
    ("vote.{all,any,uni}.sync",                                        "i1 (i32, i1)",                  80),
    ("vote.ballot.sync",                                               "i32 (i32, i1)",                 80),
    ("match.any.sync.i32",                                             "i32 (i32, i32)",                80),
    ("match.any.sync.i64",                                             "i32 (i32, i64)",                80),
    ("match.all.sync.i32p",                                            "{i32, i1} (i32, i32)",          80),
    ("activemask",                                                     "i32 ()",                        80),
    ("redux.sync.{add,min,max,umin,umax,and,or,xor}",                  "i32 (i32, i32)",                80),
    ("elect.sync",                                                     "{i32, i1} (i32)",               90),
    ("bar.warp.sync",                                                  "void (i32)",                    80),
    ("barrier.cta.sync.{aligned.all,all}",                             "void (i32)",                    80),
    ("barrier.cta.sync.{aligned.count,count}",                         "void (i32, i32)",               80),
    ("barrier.cta.arrive.{aligned.count,count}",                       "void (i32, i32)",               80),
    ("barrier.cta.red.{and,or}.{aligned.all,all}",                     "i1 (i32, i1)",                  80),
    ("barrier.cta.red.popc.{aligned.all,all}",                         "i32 (i32, i1)",                 80),
    ("barrier.cluster.{arrive,arrive.aligned,arrive.relaxed,arrive.relaxed.aligned,wait,wait.aligned}", "void ()", 90),
    ("membar.{cta,gl,sys}",                                            "void ()",                       80),
    ("fence.sc.cluster",                                               "void ()",                       90),
    ("fence.mbarrier_init.release.cluster",                            "void ()",                       90),
    ("fence.proxy.{async,async.global,async.shared_cta,async.shared_cluster}", "void ()",               90),
    ("griddepcontrol.{launch.dependents,wait}",                        "void ()",                       90),
    ("nanosleep",                                                      "void (i32)",                    80),
    ("exit",                                                           "void ()",                       80),
    ("setmaxnreg.{inc,dec}.sync.aligned.u32",                          "void (!i32)",                   "90a"),
    ("prmt",                                                           "i32 (i32, i32, i32)",           80),
    ("mulhi.{i,ui}",                                                   "i32 (i32, i32)",                80),
    ("mulhi.{ll,ull}",                                                 "i64 (i64, i64)",                80),
    ("mul24.{i,ui}",                                                   "i32 (i32, i32)",                80),
    ("idp4a.{s,u}.{s,u}",                                              "i32 (i32, i32, i32)",           80),
    ("{ex2.approx,ex2.approx.ftz}.f32",                                "float (float)",                 80),
    ("{lg2,sin,cos,rsqrt,sqrt}.approx.{f,ftz.f}",                      "float (float)",                 80),
    ("rcp.approx.ftz.f",                                               "float (float)",                 80),
    ("{rcp,sqrt}.{rn,rz,rm,rp}.{f,ftz.f}",                             "float (float)",                 80),
    ("{rcp,sqrt}.{rn,rz,rm,rp}.d",                                     "double (double)",               80),
    ("div.approx.{f,ftz.f}",                                           "float (float, float)",          80),
    ("{div,add,mul}.{rn,rz,rm,rp}.{f,ftz.f}",                          "float (float, float)",          80),
    ("{div,add,mul}.{rn,rz,rm,rp}.d",                                  "double (double, double)",       80),
    ("div.{full,full.ftz}",                                            "float (float, float)",          80),
    ("fma.{rn,rz,rm,rp}.{f,ftz.f}",                                    "float (float, float, float)",   80),
    ("fma.{rn,rz,rm,rp}.d",                                            "double (double, double, double)", 80),
    ("fma.rn.{f16,ftz.f16,relu.f16}",                                  "half (half, half, half)",       80),
    ("{fmin,fmax}.{f,ftz.f,nan.f,ftz.nan.f}",                          "float (float, float)",          80),
    ("{fmin,fmax}.d",                                                  "double (double, double)",       80),
    ("{fmin,fmax}.{f16,nan.f16}",                                      "half (half, half)",             80),
    ("{fmin,fmax}.{f16x2,nan.f16x2}",                                  "<2 x half> (<2 x half>, <2 x half>)", 80),
    ("{fmin,fmax}.{bf16,nan.bf16}",                                    "bfloat (bfloat, bfloat)",       80),
    ("{fmin,fmax}.{bf16x2,nan.bf16x2}",                                "<2 x bfloat> (<2 x bfloat>, <2 x bfloat>)", 80),
    ("saturate.{f,ftz.f}",                                             "float (float)",                 80),
    ("f2tf32.rna",                                                     "i32 (float)",                   80),
    ("ff2bf16x2.{rn,rz,rn.relu}",                                      "<2 x bfloat> (float, float)",   80),
    ("ff2f16x2.{rn,rz,rn.relu}",                                       "<2 x half> (float, float)",     80),
    ("ff.to.{e4m3x2,e5m2x2}.{rn,rn.relu}",                             "i16 (float, float)",            89),
    ("f2i.{rn,rz,rm,rp}",                                              "i32 (float)",                   80),
    ("f2ui.{rn,rz,rm,rp}",                                             "i32 (float)",                   80),
    ("isspacep.{shared,global}",                                       "i1 (ptr)",                      80),
)


def expand(pattern: str) -> list[str]:
    """All names that a pattern stands for: ``"a.{x,y}"`` gives ``["a.x", "a.y"]``."""
    match = re.search(r"\{([^}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end():]
    return [name for choice in match[1].split(",") for name in expand(head + choice + tail)]


def architecture(target: str) -> tuple[int, str]:
    """The number and the letter of a target: ``"sm_90a"`` gives (90, "a")."""
    match = re.fullmatch(r"sm_(\d+)([af]?)", target)
    if match is None:
        raise ToolchainError(f"{target!r} is not the name of a target; the targets are {', '.join(TARGETS)}")
    return int(match[1]), match[2]


def supports(target: str, least) -> bool:
    """Whether `target` has what a row requires: 90 means sm_90 and later, "90a" means sm_90a,
    or a later target with the letter a."""
    number, letter = architecture(target)
    if isinstance(least, int):
        return number >= least
    return number > int(least[:-1]) and letter == least[-1] or f"{number}{letter}" == least


@cache
def _elementwise() -> dict[str, tuple[tuple[str, ...], bool]]:
    return {name: (types, vectors) for names, types, vectors in ELEMENTWISE for name in names.split()}


@cache
def _nvvm() -> dict:
    return {name: least for pattern, _signature, least in NVVM for name in expand(pattern)}


_OVERLOAD = re.compile(r"(.+)\.(?:v(\d+))?(i\d+|f\d+|bf16)")
_PLAIN = re.compile(PLAIN)
_CONVERSION = re.compile(
    "|".join(f"(?:{names.replace(' ', '|').replace('.', '[.]')})[.](?:{'|'.join(to)})[.](?:{'|'.join(of)})"
             for names, to, of in CONVERSIONS))


@lru_cache(maxsize=4096)
def refusal(name: str, target: str) -> str:
    """Why the intrinsic `name` (with its ``llvm.`` prefix) may not be used for `target`; "" if it may.

    For those of APPROXIMATE_ONLY the answer is "afn": the caller checks the call's flags."""
    short = name.removeprefix("llvm.")
    if short.startswith("nvvm."):
        least = _nvvm().get(short[5:])
        if least is None:
            return "is not among the intrinsics that are known to lower; use inline assembly"
        return "" if supports(target, least) else f"needs sm_{least}"
    if short in APPROXIMATE_ONLY:
        return "afn"
    match = _OVERLOAD.fullmatch(short)
    if match and match[1] in _elementwise():
        types, vectors = _elementwise()[match[1]]
        if match[3] in types and (vectors or match[2] is None):
            return ""
        return f"does not lower on {match[3]}" + (" vectors" if match[2] else "")
    if _CONVERSION.fullmatch(short) or _PLAIN.fullmatch(short):
        return ""
    return "is not among the intrinsics that are known to lower; use libdevice or inline assembly"
