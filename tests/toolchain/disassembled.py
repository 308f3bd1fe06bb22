"""Machine code of PTX, made once in a run: its processes share the tests of a file, and the disassembler starts in 0.3 s."""

import fcntl
import os
from hashlib import blake2b
from pathlib import Path

from tilejit.toolchain import assembler, disassembler


def disassembled(ptx: str, target: str) -> str:
    """The SASS of every function of a PTX text."""
    key = blake2b(f"{assembler.find()} {disassembler.find()} {target} {ptx}".encode(), digest_size=16).hexdigest()
    folder = Path(os.environ["TILEJIT_CACHE_DIR"]) / "disassembled"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / key, "a+") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)  # until it is closed: another process waits for the text
        kept.seek(0)
        text = kept.read()
        if not text:
            text = disassembler.sass(assembler.assemble(ptx, target, line_info=False).cubin, lines=False)
            kept.write(text)
    return text
