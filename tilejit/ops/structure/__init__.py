"""What organises a kernel's memory: rings of slots, and views of buffers."""
