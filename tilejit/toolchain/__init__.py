"""LLVM, libdevice, the assembler and the disassembler, each behind exactly one file."""
