"""Simulates TMA: tensor copies between global and shared memory, by the fields of their tensor map."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .component import Component
from .engines import Operation, Span
from .global_flight import LOAD, REDUCE, STORE
from .tensor_maps import can_reduce, describe_faults, elements_of, packed_bits
from .tma_bytes import Box, columns, fetch_box, load_elements, locate, peer_rows, place_box, steps_of, store_elements
from .values import SimBarrier, SimBuffer, SimTensorMap, take


class TensorCopies(Component):
    """The part of the machine that issues tensor copies."""

    # -- tensor copies -------------------------------------------------------------------------------------------------

    def load(self, map_: SimTensorMap, coords: tuple, dst: SimBuffer, dst_byte_offset: Any, barrier: SimBarrier, *,
             mode: str = "tile", offsets=(), multicast: Any = None, paired: bool = False,
             positions: np.ndarray | None = None) -> None:
        """Load the box at `coords` (innermost first, (B or 1, 1) each) to `dst`; its bytes complete on `barrier`.

        With `mode` "rows" (``.tile::gather4``), the coordinates are a column and four rows. With "im2col" they are
        the location (channel, w, h, ..., n) of the first pixel, and each pixel is loaded from `offsets` (w, h, ...)
        away. With `multicast`, a mask of cluster ranks, the box goes to the same offset and barrier in each of those
        CTAs. With `paired` (``.cta_group::2``), the bytes for each receiving CTA complete in that CTA of its pair
        whose rank has the parity of the CTA that `barrier` names. With `positions`, only the CTAs at these positions
        in the batch issue the load.
        """
        coords, offsets = columns(coords), columns(offsets)
        box = self._box_of_copy(map_, mode, coords, offsets)
        if box is None or not self._is_legal(map_, coords, box, dst, dst_byte_offset, True, mode):
            return
        touches = ()
        if self.m.checks and map_.memory.maybe_written:
            touches = self._touch_elements(map_, mode, coords, offsets, "the tensor load", LOAD, positions)

        def read(map_, batch, params):
            return load_elements(map_, mode, params["coords"], params["offsets"], batch)

        params = {"coords": coords, "offsets": offsets}
        self._load(map_, box, params, read, dst, dst_byte_offset, barrier, multicast, positions, paired, touches)

    def _box_of_copy(self, map_: SimTensorMap, mode: str, coords, offsets) -> Box | None:
        """The box that a copy moves; None, with a finding, if the map is not a legal one or does not
        suit the copy's mode."""
        faults = self.m.sim.map_faults(map_, describe_faults)
        for fault in faults:
            self.m.finding("descriptor", fault)
        if faults:
            return None
        if mode == "rows":
            if map_.rank == 2 and len(coords) == 5 and map_.box[1] == 1:
                return Box(map_, (map_.box[0], 4))
            self.m.finding("descriptor", "gather4 and scatter4 take four rows of a map of rank 2 whose box is one row")
            return None
        if mode == "tile":
            if map_.im2col is None:
                return Box(map_)
            self.m.finding("descriptor", "a copy of a tile takes a map of boxes, and this one was encoded for im2col")
            return None
        count = map_.rank - 2 if mode == "im2col" else 2
        if map_.im2col is None or {None: "im2col", 0: "im2col::w", 1: "im2col::w::128"}[map_.im2col.wide] != mode:
            self.m.finding("descriptor", f"an {mode} copy takes a map that was encoded for it")
        elif offsets and len(offsets) != count:
            self.m.finding("descriptor",
                           f"an {mode} load of rank {map_.rank} takes {count} offsets, not {len(offsets)}")
        else:
            return Box(map_, (map_.im2col.channels, len(steps_of(map_.im2col, offsets)[0])))
        return None

    def _load(self, map_, box: Box, params: dict, read, dst, offset, barrier, multicast, positions, paired=False,
              touches=()) -> None:
        """Issue a load of the elements that ``read(map, batch, params)`` returns."""
        params = {**params, "dst": self.absolute(dst, offset), "map": map_,
                  "rank": np.full((1, 1), self.m.rank) if dst.peer is None else dst.peer}
        self.m.global_memory.count("global -> shared (tma)",
                                   box.nbytes * (self.m.batch if positions is None else len(positions)))
        for where, ranks in self.destinations(multicast, positions):
            self._load_to(ranks, box, read, dst, offset, barrier, params, where, paired, touches)

    def _load_to(self, ranks, box, read, dst, offset, barrier, params, where, paired, touches) -> None:
        sim, memory = self.m.sim, dst.memory
        writes, barriers = [], []
        for rank in ranks:
            peer = dst.peer if rank is None else np.full((1, 1), rank)
            span = Span.of(dst, offset, *box.pieces())
            writes.append(Span(span.space, span.start, span.pattern, span.nbytes, peer))
            # The bytes complete on the barrier of the destination's CTA, whatever CTA `barrier` names; if `paired`, on
            # that of the CTA in the destination's pair whose rank has the parity of the CTA that `barrier` names.
            own = np.full((1, 1), self.m.rank)
            if paired:
                named = own if barrier.peer is None else barrier.peer
                peer = (own if peer is None else peer) & ~1 | named & 1
            barriers.append((replace(barrier, peer=None) if peer is None else barrier.of_peer(peer), box.arriving))

        def collect(rows, params):
            return {"data": read(params["map"], len(rows), params)}

        def land(rows, params):
            for rank in ranks:
                to = params["rank"] if rank is None else np.full((1, 1), rank)
                place_box(memory, peer_rows(sim, rows, to), params["dst"], box, params["data"])

        self.m.engines.issue(Operation("the tensor load", writes=writes, land=land, collect=collect, params=params,
                                       barriers=barriers, touches=touches), positions=where)

    def destinations(self, multicast, positions=None):
        if multicast is None:
            yield positions, [None]
            return
        for where, (mask,) in self.m.engines.cases_at(positions, [np.asarray(multicast).reshape(-1, 1)]):
            ranks = [r for r in range(16) if mask >> r & 1]
            if ranks and ranks[-1] >= self.m.sim.ranks:
                self.m.finding("descriptor",
                               f"the multicast mask {mask:#x} names CTAs beyond the cluster's {self.m.sim.ranks}")
                ranks = [r for r in ranks if r < self.m.sim.ranks]
            if ranks:
                yield where, ranks

    def store(self, map_: SimTensorMap, coords: tuple, src: SimBuffer, src_byte_offset: Any, *, mode: str = "tile",
              kind: str | None = None, positions: np.ndarray | None = None) -> None:
        """Store shared memory to the box at `coords`, clipped to the map's bounds; with a `kind` (add, min, max, inc,
        dec, and, or, xor), combine it with the elements there. `mode` is as for `tma_load`, without offsets. The
        store completes in the thread's bulk group. With `positions`, only the CTAs at these positions in the batch
        issue it."""
        if kind is not None and not can_reduce(map_.dtype, kind):
            self.m.finding("descriptor", f"a tensor reduction cannot {kind} elements of {map_.dtype}")
            return
        coords = columns(coords)
        box = self._box_of_copy(map_, mode, coords, ())
        if box is None or not self._is_legal(map_, coords, box, src, src_byte_offset, False, mode):
            return
        what, touches = "the tensor store" if kind is None else "the tensor reduction", ()
        if self.m.checks:
            touches = self._touch_elements(map_, mode, coords, (), what, STORE if kind is None else REDUCE, positions)

        def land(rows, params):
            store_elements(params["map"], mode, params["coords"], params["data"], len(rows), kind)

        params = {"coords": coords, "src": self.absolute(src, src_byte_offset), "map": map_}
        self._issue_store(what, box, params, land, src, src_byte_offset, positions, touches)

    def _issue_store(self, what: str, box: Box, params: dict, land, src: SimBuffer, offset: Any, positions,
                     touches=()) -> None:
        memory = src.memory
        self.m.global_memory.count("shared -> global (tma)",
                                   box.nbytes * (self.m.batch if positions is None else len(positions)))

        def collect(rows, params):
            return {"data": fetch_box(memory, rows, params["src"], box)}

        span = Span.of(src, offset, *box.pieces())
        self.m.engines.issue(Operation(what, reads=[span], land=land, collect=collect, params=params, queue="bulk",
                                       touches=touches), positions=positions)

    def absolute(self, buffer: SimBuffer, offset: Any) -> np.ndarray:
        return (np.asarray(offset) + np.asarray(buffer.base)).reshape(-1, 1)

    def prefetch(self, map_: SimTensorMap, coords: tuple, mode: str = "tile", offsets=()) -> None:
        """Prefetch a box to L2. No effect, but its map and coordinates are checked."""
        if self._box_of_copy(map_, mode, columns(coords), columns(offsets)) is not None:
            self._legal_coordinates(map_, columns(coords), True, mode)

    def _is_legal(self, map_: SimTensorMap, coords, box: Box, buffer: SimBuffer, offset: Any, load: bool,
                  mode: str) -> bool:
        """Check the coordinates and the shared address, by what the hardware requires (not only the
        text of the ISA)."""
        if not self._legal_coordinates(map_, coords, load, mode):
            return False
        if (self.absolute(buffer, offset) % 128).any():
            at = int(self.absolute(buffer, offset).flat[0])
            self.m.finding("misaligned", f"a tensor copy's shared address must be a multiple of 128 bytes, not {at}")
            return False
        if (np.asarray(offset) < 0).any() or (np.asarray(offset) + box.span > buffer.type.nbytes).any():
            self.m.finding("out-of-bounds", f"a tensor copy of {box.span} bytes leaves the buffer of "
                                            f"{buffer.type.nbytes} bytes in shared memory")
            return False
        return True

    def _legal_coordinates(self, map_: SimTensorMap, coords, load: bool, mode: str) -> bool:
        fine = True
        if mode != "rows" and len(coords) != map_.rank:
            self.m.finding("descriptor", f"{len(coords)} coordinates for a map of rank {map_.rank}")
            return False
        padded = packed_bits(map_) is not None
        if padded and not load:
            self.m.finding("descriptor", f"a map of padded elements, {map_.dtype}, is for loads")
            fine = False
        step = 128 if padded else 16 // np.gcd(16, elements_of(map_).itemsize)
        bad = coords[0] % step != 0
        if bad.any():
            self.m.finding("misaligned", "the innermost coordinate times the element's bytes must be a multiple of 16, "
                                         f"and coordinate {int(coords[0][bad].flat[0])} is no multiple of {step}")
            fine = False
        if not load and mode == "im2col" and (min(map_.im2col.lower) < 0 or max(map_.im2col.upper) > 0):
            self.m.finding("descriptor", "an im2col store's pixels must be inside the images, and the corners "
                           f"{map_.im2col.lower} and {map_.im2col.upper} leave them")
            fine = False
        if not load:
            for d, c in enumerate(coords):
                if (c < 0).any():
                    self.m.finding("descriptor",
                                   f"a tensor store starts at the negative coordinate {int(c.min())} of dimension {d}")
                    fine = False
            width = map_.box[0] if map_.im2col is None else map_.im2col.channels
            if ((int(np.max(map_.global_dim[0])) * elements_of(map_).itemsize) % 16
                and self._clips_inner(map_, coords, width)):
                self.m.finding("out-of-bounds",
                               "a tensor store clips its innermost dimension in steps of 16 bytes only: "
                               f"it writes past the {int(np.max(map_.global_dim[0]))} elements of each row")
        return fine

    def _clips_inner(self, map_: SimTensorMap, coords, width: int) -> bool:
        size = np.asarray(map_.global_dim[0]).reshape(-1, 1)
        return bool(((coords[0] < size) & (coords[0] + width > size)).any())

    def _touch_elements(self, map_: SimTensorMap, mode: str, coords, offsets, what: str, side: int,
                        positions=None) -> tuple:
        """Check the elements of global memory that a copy accesses."""
        memory, shadow, batch = map_.memory, map_.memory.shadow, self.m.batch
        if positions is not None:
            batch, map_ = len(positions), take(map_, positions)
            coords, offsets = take(coords, positions), take(offsets, positions)
        at, keep = locate(map_, mode, coords, offsets, batch)
        cells = (at + memory.address - shadow.address) // shadow.granule
        keep = np.broadcast_to(keep, cells.shape) & (cells >= 0) & (cells < shadow.cells)
        return self.m.global_memory.touch(memory, what, side, cells, keep, positions,
                                          itemsize=elements_of(map_).itemsize)
