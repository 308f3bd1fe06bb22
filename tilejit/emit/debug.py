"""Debug information: line tables, so that profilers show lines of the Python source.

They are ``DebugDirectivesOnly``: .file and .loc only. The mark of loops that must not be unrolled is made here
too.
"""

from __future__ import annotations

import os

from ..errors import Loc
from ..ir.graph import Graph


class DebugInfo:
    """Numbers the source locations of instructions, and writes the metadata nodes that describe them."""

    FIRST = 10

    def __init__(self, graph: Graph):
        self.graph = graph
        self.files: dict[str, int] = {}
        self.scopes: dict[str, int] = {}
        self.lines: dict[tuple, int] = {}
        self.next = self.FIRST
        self.rolled = False

    def _number(self, table: dict, key) -> int:
        if key not in table:
            table[key] = self.next
            self.next += 1
        return table[key]

    def mark(self, loc: Loc | None) -> str:
        """The ``!dbg`` suffix of an instruction. Its scope is the kernel;
        a line of an inlined helper keeps the helper's file."""
        loc = loc or self.graph.loc
        if loc is None:
            return ""
        own = self.graph.loc.file if self.graph.loc else loc.file
        scope = 4 if loc.file == own else self._number(self.scopes, loc.file)
        return f", !dbg !{self._number(self.lines, (loc.line, loc.column + 1, scope))}"

    def not_unrolled(self) -> str:
        """The suffix of a loop's back edge that keeps LLVM, and ptxas (``.pragma "nounroll"``),
        from unrolling the loop."""
        self.rolled = True
        return ", !llvm.loop !5"

    def function(self) -> str:
        return " !dbg !4" if self.graph.loc is not None else ""

    def metadata(self, libdevice: bool) -> str:
        flags = ["!{i32 2, !\"Debug Info Version\", i32 3}"]
        if libdevice:
            flags.append(f"!{{i32 4, !\"nvvm-reflect-ftz\", i32 {int(self.graph.launch.fast_math)}}}")
        loops = ["!5 = distinct !{!5, !6}", "!6 = !{!\"llvm.loop.unroll.disable\"}"] if self.rolled else []
        loc = self.graph.loc
        if loc is None:
            return "\n".join(["!llvm.module.flags = !{!0}", f"!0 = {flags[0]}", *loops])
        out = [*loops, f"!llvm.module.flags = !{{{', '.join(f'!{8 + i}' if i else '!0' for i in range(len(flags)))}}}",
               "!llvm.dbg.cu = !{!1}"]
        out += [f"!{8 + i if i else 0} = {flag}" for i, flag in enumerate(flags)]
        out += [
            "!1 = distinct !DICompileUnit(language: DW_LANG_C, file: !2, producer: \"tilejit\", isOptimized: true, "
            "runtimeVersion: 0, emissionKind: DebugDirectivesOnly)",
            f"!2 = {self._file(loc.file)}",
            "!3 = !DISubroutineType(types: !{})",
            f"!4 = distinct !DISubprogram(name: \"{self.graph.name}\", scope: !2, file: !2, line: {loc.line}, type: "
            f"!3, scopeLine: {loc.line}, spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !1)",
        ]
        numbered = []
        for file, number in self.scopes.items():
            numbered.append((number, f"!DILexicalBlockFile(scope: !4, file: !{self.next}, discriminator: 0)"))
            numbered.append((self.next, self._file(file)))
            self.next += 1
        for (line, column, scope), number in self.lines.items():
            numbered.append((number, f"!DILocation(line: {line}, column: {column}, scope: !{scope})"))
        return "\n".join(out + [f"!{n} = {text}" for n, text in sorted(numbered)])

    @staticmethod
    def _file(path: str) -> str:
        folder, name = os.path.split(path)
        def quote(s):
            return s.replace("\\", "\\5C").replace('"', "'")  # a PTX string cannot contain '"'
        return f"!DIFile(filename: \"{quote(name)}\", directory: \"{quote(folder)}\")"
