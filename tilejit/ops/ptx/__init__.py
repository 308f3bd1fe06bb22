"""The instructions of the PTX table, called by ``tile.ptx``, and what each means to the simulator."""
