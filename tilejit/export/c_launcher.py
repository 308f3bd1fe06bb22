"""The C header and source that launch an exported kernel: C99 or C++, with libcuda alone.

Each version of the kernel becomes a function that checks its guards, encodes its tensor maps, and launches. It is made
of the same expressions (`runtime.recipe`) as the launchers of Python; here they become C text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..config import architecture
from ..dtypes import LARGEST, LEAST_NORMAL
from ..errors import LaunchError
from ..names import entry_name
from ..runtime.element_types import ELEMENT_TYPES, integer_limits
from ..runtime.facts import ArrayKind, describe_fact
from ..runtime.launch_expressions import Expression, Leaf, fold
from ..runtime.recipe import (
    PORTABLE_CLUSTER,
    PROGRAMS_LIMIT,
    GridParameter,
    MapParameter,
    MapRecipe,
    Parameter,
    Recipe,
)
from .archive import RUNS, Archive, ExportedVersion

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr const_cast
    continue decltype default delete do double dynamic_cast else enum explicit export extern false float for friend goto
    if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct
    switch template this throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while
    xor xor_eq grid_x grid_y grid_z stream found context code version count attributes parameters config programs
    device resident launches"""
KEYWORDS = frozenset(re.findall(r"\w+", _KEYWORDS))

# a scalar's dtype -> its type in C; narrow floats are passed as their bits
C_TYPES = {"bool": "uint8_t", "float32": "float", "float64": "double",
           **{name: f"{name}_t" for name in ELEMENT_TYPES if integer_limits(name) is not None}}

OPERATORS = {"add": "({} + {})", "sub": "({} - {})", "mul": "times({}, {})", "floordiv": "quotient({}, {})",
             "mod": "remainder_of({}, {})", "min": "least({}, {})", "max": "most({}, {})", "abs": "magnitude({})",
             "positive": f"({LEAST_NORMAL!r} <= {{0}} && {{0}} <= {LARGEST!r})",
             "eq": "({} == {})", "le": "({} <= {})", "and": "({} && {})", "or": "({} || {})"}


@dataclass(frozen=True)
class Argument:
    """A parameter of the C function: the kernel's argument `name`, and as what kind of `C` it is passed."""

    name: str
    c: str
    type: str


def dtype_code(name: str) -> int:
    """The number of an element type in C: DLPack's code and its bits."""
    code, bits = ELEMENT_TYPES[name].dlpack
    return code << 8 | bits


def dtype_name(name: str) -> str:
    return f"TILEJIT_{name.upper()}"


def _scalar_type(dtype: str) -> str:
    """The type in C of a scalar."""
    return C_TYPES.get(dtype) or f"uint{8 * ELEMENT_TYPES[dtype].nbytes}_t"


# -- the function's parameters ---------------------------------------------------------------------------------------

def c_arguments(archive: Archive) -> tuple[Argument, ...]:
    """The parameters of the C function: all arguments at run time, and the constants in which versions differ."""
    names = list(dict.fromkeys(name for v in archive.versions for name in (*v.arguments, *v.constants)))
    order = {name: n for n, (name, _, _) in enumerate(archive.parameters)}
    names.sort(key=lambda name: order[re.split(r"[.\[]", name)[0]])
    found: list[Argument] = []
    for name in names:
        kind = _c_type(name, archive)
        if kind:
            found.append(Argument(name, _identifier(name, {a.c for a in found}), kind))
    return tuple(found)


def _identifier(name: str, taken: set[str]) -> str:
    text = re.sub(r"\W+", "_", name).strip("_") if name.isascii() else entry_name(name)
    while text in KEYWORDS or text in taken or re.fullmatch(r"[pnmxa]\d+(_\d+)?", text):
        text += "_"
    return text


def _c_type(name: str, archive: Archive) -> str:
    """The type of an argument in C; "" for a constant that is the same in all versions. LaunchError if there is no type
    for what the versions take."""
    kinds = {_kind(name, version) for version in archive.versions}
    if "array" in kinds and kinds <= {"array", "NoneType"}:
        return "const tilejit_array *"
    if any(kind.startswith("scalar") for kind in kinds):
        dtypes = {kind.partition(" ")[2] for kind in kinds}
        if dtypes <= {"int32", "int64"}:
            return "int64_t " if len(dtypes) > 1 else C_TYPES[next(iter(dtypes))] + " "
        if len(kinds) == 1:
            dtype = dtypes.pop()
            return _scalar_type(dtype) + " "
        raise LaunchError(f"{name} is {' and '.join(sorted(k.removeprefix('scalar ') for k in kinds))} in the specs, "
                          "and a C function has one type for it: export these specs to two files")
    if "array" in kinds:
        raise LaunchError(f"{name} is an array in one spec and a constant in another: export these to two files")
    values = {repr(version.constants.get(name)) for version in archive.versions}
    if len(values) == 1:
        return ""
    return "int64_t " if kinds <= {"int", "bool"} else "const char *"


def _kind(name: str, version: ExportedVersion) -> str:
    """What a version takes for an argument: "array", "scalar" with its dtype, or the type of a constant."""
    if name in version.arguments:
        kind, dtype, *_ = version.recipe["arguments"][version.arguments.index(name)]
        return "array" if kind == "array" else f"scalar {dtype}"
    return version.constants[name][0] if name in version.constants else "NoneType"


def prototype(archive: Archive) -> str:
    """The head of the launch function."""
    items = ["uint32_t grid_x", "uint32_t grid_y", "uint32_t grid_z", "CUstream stream",
             *(a.type + a.c for a in c_arguments(archive))]
    return textwrap.fill(f"int {entry_name(archive.name)}_launch({', '.join(items)})", 116, subsequent_indent="    ")


# -- the header ------------------------------------------------------------------------------------------------------

HEADER = """\
/* {name}: a kernel exported by tilejit {package} for {targets}. Generated; do not edit.

   For C99 and C++. Compile {stem}.c with your program, and link with libcuda: -lcuda -pthread. */
#ifndef {guard}
#define {guard}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

typedef struct CUstream_st *CUstream; /* the driver's, and cudaStream_t; NULL is the default stream */

#ifndef TILEJIT_ARRAY
#define TILEJIT_ARRAY
/* Element types: DLPack's type code and its bits. */
enum tilejit_dtype {{
{dtypes}
}};

/* An array in the memory of the GPU. Strides are in elements; NULL stands for row-major ones. The shapes of packed
   dtypes (of 4 and 6 bits) count bytes along the last dimension. */
typedef struct tilejit_array {{
    void *data;
    int32_t dtype;
    int32_t rank;
    const int64_t *shape;
    const int64_t *strides;
}} tilejit_array;
#endif

/* Launch on the GPU of the calling thread's current context. Returns 0; a CUresult if the driver refuses; -1 if no
   version of the kernel accepts the arguments; -2 for a grid or a number that does not fit. Nothing was launched if it
   is not 0. Safe for threads.

   The versions, in the order in which they are tried:
{versions} */
{prototype};

/* Load the machine code for the current context, as the first launch would: before a CUDA graph captures launches.
   Returns 0, a CUresult, or -1 if there is none for this GPU. */
int {entry}_load(void);

/* Why the last call in this thread did not return 0. */
const char *{entry}_error(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def header_text(archive: Archive) -> str:
    """The text of the header."""
    entry = entry_name(archive.name)
    return HEADER.format(
        name=archive.name, package=archive.package, targets=", ".join(archive.targets), entry=entry, stem=entry,
        guard=f"TILEJIT_{entry.upper()}_H", prototype=prototype(archive),
        dtypes=",\n".join(f"    {dtype_name(name)} = {dtype_code(name):#x}" for name in ELEMENT_TYPES),
        versions="\n".join(_comment(n, version) for n, version in enumerate(archive.versions)))


def _comment(n: int, version: ExportedVersion) -> str:
    lines = [f"   {n}: {version.target}, {version.signature}", *(f"      {guard}" for guard in version.guards)]
    return "\n".join(lines).replace("*/", "* /").encode("ascii", "backslashreplace").decode()


# -- the source ------------------------------------------------------------------------------------------------------

SOURCE = """\
/* Launches {name}, a kernel exported by tilejit {package} for {targets}. Generated; do not edit. */
#include "{header}"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of the driver that is used here (CUDA driver API), so that no toolkit is needed. */
typedef struct CUctx_st *context_t;
typedef struct CUmod_st *module_t;
typedef struct CUfunc_st *function_t;
typedef struct {{
    int id;
    char padding[4];
    union {{ char bytes[64]; struct {{ unsigned x, y, z; }} cluster; int serialization; }} value;
}} attribute_t;
typedef struct {{
    unsigned grid[3], block[3], shared;
    CUstream stream;
    attribute_t *attributes;
    unsigned count;
}} config_t;

#ifdef __cplusplus
extern "C" {{
#endif
int cuCtxGetCurrent(context_t *);
int cuCtxGetDevice(int *);
int cuDeviceGetAttribute(int *, int, int);
int cuModuleLoadData(module_t *, const void *);
int cuModuleGetFunction(function_t *, module_t, const char *);
int cuFuncGetAttribute(int *, int, function_t);
int cuFuncSetAttribute(function_t, int, int);
int cuLaunchKernelEx(const config_t *, function_t, void **, void **);
int cuGetErrorName(int, const char **);
{driver}
#ifdef __cplusplus
}}
#endif

enum {{ NO_VERSION = -1, MISFIT = -2, INVALID_CONTEXT = 201 }};

static __thread char text[2048];

static void add(const char *more) {{
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%s", used ? "; " : "", more);
}}

/* This version does not accept the call. */
static int refuse(const char *version, const char *reason) {{
    add(version);
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, ": %s", reason);
    return NO_VERSION;
}}

static int fail(int code, const char *doing) {{
    const char *name = NULL;
    text[0] = 0;
    if (code > 0 && cuGetErrorName(code, &name)) name = NULL;
    snprintf(text, sizeof text, "{name}: %s%s%s", doing, code > 0 ? " failed: " : "",
             code > 0 ? (name ? name : "CUDA error") : "");
    return code;
}}

/* Integers with the meaning that they have in Python; products wrap. */
static inline int64_t times(int64_t a, int64_t b) {{ return (int64_t)((uint64_t)a * (uint64_t)b); }}
static inline int64_t quotient(int64_t a, int64_t b) {{ return a / b - (a % b != 0 && (a < 0) != (b < 0)); }}
static inline int64_t remainder_of(int64_t a, int64_t b) {{ return a - times(quotient(a, b), b); }}
static inline int64_t least(int64_t a, int64_t b) {{ return a < b ? a : b; }}
static inline int64_t most(int64_t a, int64_t b) {{ return a > b ? a : b; }}
static inline int64_t magnitude(int64_t a) {{ return a < 0 ? -a : a; }}

static inline int64_t stride_of(const tilejit_array *a, int axis) {{
    if (a->strides) return a->strides[axis];
    int64_t step = 1;
    for (int d = a->rank - 1; d > axis; d--) step = times(step, most(a->shape[d], 1));
    return step;
}}

{code_arrays}

/* The kernel's functions, loaded once for each context. */
typedef struct loaded {{
    struct loaded *next;
    context_t context;
    function_t function;
    uint64_t nowhere; /* the address of memory that nothing uses, for tensor maps of arrays without elements */
    int cluster_in_code;
}} loaded_t;

static loaded_t *first[{count}];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int load_locked(int version, context_t context, const unsigned char *image, int shared, int large_cluster,
                       int nowhere, loaded_t **found) {{
    for (loaded_t *at = first[version]; at; at = at->next)
        if (at->context == context) {{ *found = at; return 0; }}
    module_t module;
    loaded_t made = {{ first[version], context, NULL, 0, 0 }};
    int code = cuModuleLoadData(&module, image), width = 0;
    if (code) return fail(code, "loading the machine code");
    if ((code = cuModuleGetFunction(&made.function, module, "{entry}"))) return fail(code, "finding the kernel");
    if (shared > 48 * 1024 && (code = cuFuncSetAttribute(made.function, 8, shared)))
        return fail(code, "opting in to its shared memory");
    if (large_cluster && (code = cuFuncSetAttribute(made.function, 14, 1)))
        return fail(code, "allowing clusters of more than 8 CTAs");
    if ((code = cuFuncGetAttribute(&width, 11, made.function))) return fail(code, "reading the cluster's width");
    made.cluster_in_code = width != 0;
{nowhere}
    if (!(*found = (loaded_t *)malloc(sizeof made))) return fail(2, "allocating host memory");
    **found = made;
    first[version] = *found;
    return 0;
}}

static int load(int version, context_t context, const unsigned char *image, int shared, int large_cluster, int nowhere,
                loaded_t **found) {{
    pthread_mutex_lock(&lock);
    int code = load_locked(version, context, image, shared, large_cluster, nowhere, found);
    pthread_mutex_unlock(&lock);
    return code;
}}

{versions}

/* The context of the calling thread and the compute capability of its GPU. */
static int look(context_t *context, int *capability) {{
    int device, major, minor, code = cuCtxGetCurrent(context);
    if (!code && !*context) code = INVALID_CONTEXT;
    if (!code) code = cuCtxGetDevice(&device);
    if (!code) code = cuDeviceGetAttribute(&major, 75, device);
    if (!code) code = cuDeviceGetAttribute(&minor, 76, device);
    if (code) return fail(code, "no CUDA context is current (cudaFree(0), or cuCtxSetCurrent); looking for it");
    *capability = 10 * major + minor;
    return 0;
}}

static int without_code(int capability) {{
    snprintf(text, sizeof text, "{name} was exported for {targets}, and this GPU has compute capability %d.%d",
             capability / 10, capability % 10);
    return NO_VERSION;
}}

#ifdef __cplusplus
extern "C"
#endif
{prototype} {{
    context_t context;
    int capability, tried = 0, code = NO_VERSION;
    text[0] = 0;
    if (grid_x > 2147483647u || grid_y > 65535 || grid_z > 65535)
        return fail(MISFIT, "a grid is at most 2147483647 by 65535 by 65535 CTAs");
    if (!grid_x || !grid_y || !grid_z) return 0;
    if ((code = look(&context, &capability))) return code;
{tries}
    return tried ? NO_VERSION : without_code(capability);
}}

#ifdef __cplusplus
extern "C"
#endif
int {entry}_load(void) {{
    context_t context;
    loaded_t *found;
    int capability, tried = 0, code;
    text[0] = 0;
    if ((code = look(&context, &capability))) return code;
{loads}
    return tried ? 0 : without_code(capability);
}}

#ifdef __cplusplus
extern "C"
#endif
const char *{entry}_error(void) {{ return text; }}
"""

TILED = ("int cuTensorMapEncodeTiled(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, "
         "const uint32_t *,\n    const uint32_t *, int, int, int, int);")
IM2COL = ("int cuTensorMapEncodeIm2col(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, "
          "const int *,\n    const int *, uint32_t, uint32_t, const uint32_t *, int, int, int, int);")
WIDE = ("int cuTensorMapEncodeIm2colWide(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, int, int,\n"
        "    uint32_t, uint32_t, const uint32_t *, int, int, int, int, int);")
ALLOCATE = "int cuMemAlloc_v2(uint64_t *, size_t);"
NOWHERE = ('    if (nowhere && (code = cuMemAlloc_v2(&made.nowhere, 256)))\n'
           '        return fail(code, "allocating 256 bytes");')


def source_text(archive: Archive, header: str) -> str:
    """The text of the source."""
    versions, arguments = list(map(_Version, archive.versions)), c_arguments(archive)
    maps = [map_ for v in versions for map_ in v.recipe.map_params]
    needed = {TILED: any(m.fixed.box is not None for m in maps),
              IM2COL: any(m.fixed.box is None and m.fixed.wide is None for m in maps),
              WIDE: any(m.fixed.box is None and m.fixed.wide is not None for m in maps),
              ALLOCATE: any(m.address is None for m in maps)}
    images = list(dict.fromkeys(v.version.cubin for v in versions))
    places = [images.index(v.version.cubin) for v in versions]
    passed = "".join(f", {a.c}" for a in arguments)
    return SOURCE.format(
        name=archive.name, package=archive.package, targets=", ".join(archive.targets), header=header,
        entry=entry_name(archive.name), count=len(versions), prototype=prototype(archive),
        driver="\n".join(text for text, used in needed.items() if used),
        nowhere=NOWHERE if needed[ALLOCATE] else "    (void)nowhere;",
        code_arrays="\n\n".join(_array(n, image) for n, image in enumerate(images)),
        versions="\n\n".join(v.function(n, f"image_{places[n]}", arguments) for n, v in enumerate(versions)),
        tries="\n".join(f"    if ({v.fits}) {{\n        tried = 1;\n"
                        f"        code = version_{n}(context, grid_x, grid_y, grid_z, stream{passed});\n"
                        "        if (code != NO_VERSION) return code;\n    }" for n, v in enumerate(versions)),
        loads="\n".join(f"    if ({v.fits}) {{\n        tried = 1;\n"
                        f"        code = load({n}, context, image_{places[n]}, {v.load_operands}, &found);\n"
                        "        if (code) return code;\n    }" for n, v in enumerate(versions)))


def _array(n: int, image: bytes) -> str:
    rows = (",".join(map(str, image[at:at + 32])) for at in range(0, len(image), 32))
    return (f"static const unsigned char image_{n}[] __attribute__((aligned(64))) = {{\n"
            + ",\n".join(rows) + "};")


class _Version:
    """The C function of one version."""

    def __init__(self, version: ExportedVersion):
        self.version, self.recipe = version, Recipe.of(version.recipe)

    @property
    def fits(self) -> str:
        """The condition that the GPU, of compute capability `capability`, runs the version's machine code."""
        target = self.version.target
        if target == "sm_80":
            return "capability / 10 == 8"
        also = [architecture(name) for name, runs in RUNS.items() if target in runs]
        return " || ".join(f"capability == {n}" for n in sorted({architecture(target), *also}))

    @property
    def load_operands(self) -> str:
        """The last operands of `load`."""
        x, y, z = self.recipe.cluster or (1, 1, 1)
        nowhere = any(map_.address is None for map_ in self.recipe.maps)
        return f"{self.recipe.shared}, {int(x * y * z > PORTABLE_CLUSTER)}, {int(nowhere)}"

    def function(self, n: int, image: str, arguments: tuple[Argument, ...]) -> str:
        """The function that launches by this version, or returns NO_VERSION."""
        title = f"version {n} ({self.version.target}, {self.version.signature})"
        body = [f"static const char *const version = {_literal(title)};", "(void)version;",
                *self._matches(arguments), *self._leaves(arguments), *self._guards(), *self._grid(),
                "loaded_t *found;",
                f"int code = load({n}, context, {image}, {self.load_operands}, &found);",
                "if (code) return code;",
                *self._parameters(), *self._launch()]
        head = ", ".join(a.type + a.c for a in arguments)
        return (f"static int version_{n}(context_t context, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, "
                f"CUstream stream{', ' if head else ''}{head}) {{\n"
                + "\n".join("    " + line for line in body) + "\n}")

    def _matches(self, arguments: tuple[Argument, ...]) -> Iterator[str]:
        """Refusals of arguments of other kinds, and of other constants."""
        for a in arguments:
            if a.name in self.version.arguments:
                kind = self.recipe.arguments[self.version.arguments.index(a.name)]
                if isinstance(kind, ArrayKind):
                    reason = _literal(f"{a.name} is no {kind.dtype} array of {kind.rank} dimensions")
                    yield f"if (!{a.c} || {a.c}->dtype != {dtype_name(kind.dtype)} || {a.c}->rank != {kind.rank})"
                    yield f"    return refuse(version, {reason});"
                elif kind.dtype == "int32" and a.type == "int64_t ":
                    yield (f"if ({a.c} != (int32_t){a.c}) "
                           f"return refuse(version, {_literal(f'{a.name} does not fit in int32')});")
                continue
            kind, value = self.version.constants.get(a.name, ["NoneType", None])
            shown = _literal(f"{a.name} is not {value}")
            if a.type.startswith("const tilejit_array"):
                yield f"if ({a.c}) return refuse(version, {_literal(f'{a.name} is not NULL')});"
            elif a.type == "int64_t ":
                yield f"if ({a.c} != {int(value)}) return refuse(version, {shown});"
            else:
                yield f"if (strcmp({a.c}, {_literal(_text_of(value))})) return refuse(version, {shown});"

    def _leaves(self, arguments: tuple[Argument, ...]) -> Iterator[str]:
        """Definitions of the numbers of the arguments that the version uses."""
        names = {a.name: a.c for a in arguments}
        for leaf in sorted(set(self.recipe.leaves()), key=str):
            c = names[self.version.arguments[leaf.argument]]
            reads = {"ptr": f"(int64_t)(intptr_t){c}->data", "size": f"{c}->shape[{leaf.axis}]",
                     "stride": f"stride_of({c}, {leaf.axis})", "scalar": c}
            if leaf.kind != "scalar":
                yield f"const int64_t {_name(leaf)} = {reads[leaf.kind]};"
            else:
                dtype = self.recipe.arguments[leaf.argument].dtype
                type_ = "int64_t" if integer_limits(dtype) and dtype != "uint64" else _scalar_type(dtype)
                yield f"const {type_} {_name(leaf)} = {c};"

    def _guards(self) -> Iterator[str]:
        for guard in self.recipe.guards:
            says = describe_fact(guard.fact, self.version.arguments)
            wrong = _literal(f"not: {says}" if guard.held else says)
            yield f"if ({'!' if guard.held else ''}{_c(guard.condition)}) return refuse(version, {wrong});"

    def _grid(self) -> Iterator[str]:
        for axis, size in zip("xyz", self.recipe.cluster or ()):
            if size > 1:
                yield (f"if (grid_{axis} % {size}) "
                       f"return fail(MISFIT, \"grid_{axis} is no multiple of the cluster's {size}\");")
        if self.recipe.persistent:
            yield "const uint64_t programs = (uint64_t)grid_x * grid_y * grid_z;"
            yield f"if (programs > {PROGRAMS_LIMIT}u)"
            yield f'    return fail(MISFIT, "this version has at most {PROGRAMS_LIMIT} programs");'

    def _parameters(self) -> Iterator[str]:
        """The kernel's parameters, and an array of pointers to them."""
        pointers, slot = [], 0
        for n, param in enumerate(self.recipe.params):
            if isinstance(param, MapParameter):
                yield from _encode(slot, self.recipe.maps[param.index])
                pointers.append(f"map_{slot}")
                slot += 1
                continue
            if isinstance(param, GridParameter):
                pointers.append(f"&a{n}")
                yield f"uint32_t a{n} = grid_{'xyz'[param.axis]};"
                continue
            text = _c(param.value)
            if param.narrows:
                yield f"if ({text} != (int32_t){text})"
                yield '    return fail(MISFIT, "a size or stride does not fit in 32 bits");'
            yield f"{_parameter_type(param)} a{n} = ({_parameter_type(param)}){text};"
            pointers.append(f"&a{n}")
        yield f"void *parameters[] = {{{', '.join(pointers) or 'NULL'}}};"

    def _launch(self) -> Iterator[str]:
        recipe = self.recipe
        yield "attribute_t attributes[2];"
        yield "unsigned count = 0;"
        yield "memset(attributes, 0, sizeof attributes);"
        if recipe.cluster:
            x, y, z = recipe.cluster
            yield "if (!found->cluster_in_code) {"
            yield "    attributes[count].id = 4;"
            for axis, size in zip("xyz", (x, y, z)):
                yield f"    attributes[count].value.cluster.{axis} = {size};"
            yield "    count++;"
            yield "}"
        if recipe.pdl:
            yield "attributes[count].id = 6;"
            yield "attributes[count++].value.serialization = 1;"
        grid = "grid_x, grid_y, grid_z"
        if recipe.persistent:
            grid = "programs < (unsigned)resident ? (unsigned)programs : (unsigned)resident, 1, 1"
            yield "int device, resident;"
            yield "if ((code = cuCtxGetDevice(&device)) || (code = cuDeviceGetAttribute(&resident, 16, device)))"
            yield '    return fail(code, "counting multiprocessors");'
        yield (f"config_t config = {{ {{{grid}}}, {{{recipe.threads}, 1, 1}}, {recipe.shared}, stream, "
               "attributes, count };")
        yield "code = cuLaunchKernelEx(&config, found->function, parameters, NULL);"
        yield 'if (code) return fail(code, "the launch");'
        yield "text[0] = 0;"
        yield "return 0;"


def _encode(slot: int, map_: MapRecipe) -> Iterator[str]:
    """The encoding of a tensor map into ``map_slot``."""
    fixed, modes = map_.fixed, ", ".join(map(str, map_.modes))
    address = "found->nowhere" if map_.address is None else _c(map_.address)
    yield f"unsigned char map_{slot}[128] __attribute__((aligned(64)));"
    yield f"const uint64_t dims_{slot}[] = {{{', '.join(f'(uint64_t){_c(x)}' for x in map_.dims)}}};"
    strides = ", ".join(f"(uint64_t){_c(x)}" for x in map_.strides)
    yield f"const uint64_t strides_{slot}[] = {{{strides or '0'}}};"
    yield f"static const uint32_t steps_{slot}[] = {{{', '.join(map(str, fixed.element_strides))}}};"
    begin = f"map_{slot}, {fixed.code}, {fixed.rank}, (void *)(intptr_t){address}, dims_{slot}, strides_{slot}"
    if fixed.box is not None:
        yield f"static const uint32_t box_{slot}[] = {{{', '.join(map(str, fixed.box))}}};"
        yield f"code = cuTensorMapEncodeTiled({begin}, box_{slot}, steps_{slot}, {modes});"
    elif fixed.wide is not None:
        interleave, swizzle, promotion, fill = map_.modes
        yield (f"code = cuTensorMapEncodeIm2colWide({begin}, {fixed.lower[0]}, {fixed.upper[0]}, {fixed.channels}, "
               f"{fixed.pixels}, steps_{slot}, {interleave}, {fixed.wide}, {swizzle}, {promotion}, {fill});")
    else:
        for name, corner in (("lower", fixed.lower), ("upper", fixed.upper)):
            yield f"static const int {name}_{slot}[] = {{{', '.join(map(str, corner))}}};"
        yield (f"code = cuTensorMapEncodeIm2col({begin}, lower_{slot}, upper_{slot}, {fixed.channels}, {fixed.pixels}, "
               f"steps_{slot}, {modes});")
    yield f"if (code) return fail(code, \"encoding tensor map {slot}\");"


def _parameter_type(param: Parameter) -> str:
    """The type in C of a parameter of the kernel."""
    if param.dtype:
        return _scalar_type(param.dtype)
    return {"Q": "uint64_t", "i": "int32_t", "q": "int64_t"}[param.form]


def _text_of(value: Any) -> str:
    """A stored constant as a string of C."""
    return value if isinstance(value, str) else repr(value)


def _c(x: Expression) -> str:
    """An expression as C text."""
    return fold(x, lambda n: f"INT64_C({n})", _name, lambda name, *parts: OPERATORS[name].format(*parts))


def _name(leaf: Leaf) -> str:
    letter = {"ptr": "p", "size": "n", "stride": "m", "scalar": "x"}[leaf.kind]
    return f"{letter}{leaf.argument}" + ("" if leaf.axis is None else f"_{leaf.axis}")


def _literal(text: str) -> str:
    """A string literal of C."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") + '"'


__all__ = ["header_text", "source_text"]
