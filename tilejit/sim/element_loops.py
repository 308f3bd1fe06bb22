"""Loops of the simulator over single elements, which `compile_loops` hands to numba.

Each does what a function beside its caller does with NumPy, bit for bit. They are plain Python on arrays that are
contiguous and writeable, so that numba compiles each for few types.
"""

from __future__ import annotations

ADD, SUB, MIN, MAX, AND, OR, XOR, EXCH, CAS, INC, DEC = range(11)
KINDS = {"add": ADD, "sub": SUB, "min": MIN, "max": MAX, "minimum": MIN, "maximum": MAX, "and": AND, "or": OR,
         "xor": XOR, "exch": EXCH, "cas": CAS, "inc": INC, "dec": DEC}


def apply_integers(memory, index, kind, values, compare, old):
    """``old[i] = memory[index[i]]; memory[index[i]] op= values[i]`` for each i in order. Returns whether memory has
    changed."""
    one = memory.dtype.type(1)
    zero = memory.dtype.type(0)
    changed = False
    for i in range(index.size):
        at = index[i]
        before = memory[at]
        x = values[i]
        after = x
        if kind == ADD:
            after = memory.dtype.type(before + x)
        elif kind == SUB:
            after = memory.dtype.type(before - x)
        elif kind == MIN:
            after = min(before, x)
        elif kind == MAX:
            after = max(before, x)
        elif kind == AND:
            after = before & x
        elif kind == OR:
            after = before | x
        elif kind == XOR:
            after = before ^ x
        elif kind == CAS and before != compare[i]:
            after = before
        elif kind == INC:
            after = zero if before >= x else memory.dtype.type(before + one)
        elif kind == DEC and before != zero and before <= x:
            after = memory.dtype.type(before - one)
        old[i] = before
        memory[at] = after
        changed |= after != before
    return changed


def add_floats(memory, bits, index, values, nan, one_nan, old):
    """``old[i] = memory[index[i]]; memory[index[i]] += values[i]`` for each i in order. `bits` is memory as unsigned
    integers. With `one_nan`, every sum that is NaN has the bits `nan`; otherwise those of the first operand that is
    NaN, as x86 has them. Returns whether memory has changed."""
    changed = False
    for i in range(index.size):
        at = index[i]
        before = memory[at]
        was = bits[at]
        x = values[i]
        old[i] = before
        if one_nan:
            memory[at] = before + x
            if memory[at] != memory[at]:
                bits[at] = nan
        elif before != before:
            memory[at] = before + memory.dtype.type(0)   # quiet
        elif x != x:
            memory[at] = x + memory.dtype.type(0)
        else:
            memory[at] = before + x
        changed |= bits[at] != was
    return changed


def apply_extremes(memory, index, keys, largest, last, infinity, nan_key, old):
    """As `apply_integers`, for the minimum or the maximum (`largest`) of floats, which `memory` and `old` hold as
    signed integers of their bits, and `keys` as `atomics.ordered_bits`. There, NaN maps to `nan_key`; `last` are all
    bits but the sign, and `infinity` those of infinity."""
    changed = False
    for i in range(index.size):
        at = index[i]
        bits = memory[at]
        key = bits
        if bits & last > infinity:
            key = nan_key
        elif bits < 0:
            key = bits ^ last
        key = max(key, keys[i]) if largest else min(key, keys[i])
        old[i] = bits
        memory[at] = key ^ last if key < 0 else key
        changed |= memory[at] != bits
    return changed


def mark_writes(writer, reader, cells, ids):
    """Mark ``cells[i]`` as written by the CTA ``ids[i]``, for each i in order. Returns 0, and marks nothing, if another
    CTA has written or read one of them; 2 if several CTAs now write one; otherwise 1. `reader` may be empty."""
    for i in range(cells.size):
        cell = cells[i]
        if writer[cell] > 0 and writer[cell] != ids[i]:
            return 0
        if reader.size and reader[cell] != 0 and reader[cell] != ids[i]:
            return 0
    outcome = 1
    for i in range(cells.size):
        cell = cells[i]
        if writer[cell] > 0 and writer[cell] != ids[i]:
            outcome = 2
        writer[cell] = ids[i]
    return outcome


def store_marked(memory, index, values, base, writer, reader, ids, first):
    """``memory[index[i]] = values[i]``, and mark the cell ``base + index[i]`` as written by the CTA ``ids[i]``, for
    each i in order. Returns 0, and does nothing, if another CTA has written or read one of the cells; otherwise 1, plus
    2 if several CTAs now write one cell, plus 4 if one CTA may write one several times. `reader` may be empty; `first`
    says that nothing has been marked before."""
    for i in range(0 if first else index.size):
        cell = base + index[i]
        if writer[cell] > 0 and writer[cell] != ids[i]:
            return 0
        if reader.size and reader[cell] != 0 and reader[cell] != ids[i]:
            return 0
    outcome = 1
    for i in range(index.size):
        cell = base + index[i]
        before = writer[cell]
        if before > 0:
            outcome |= 4 if before == ids[i] else 6
        writer[cell] = ids[i]
        memory[index[i]] = values[i]
    return outcome


def mark_reads(writer, reader, cells, ids, many):
    """Mark ``cells[i]`` as read by the CTA ``ids[i]``, or by `many` if another one has read it. Returns False, and
    marks nothing, if another CTA has written one of them. `writer` may be empty."""
    if writer.size:
        for i in range(cells.size):
            if writer[cells[i]] > 0 and writer[cells[i]] != ids[i]:
                return False
    for i in range(cells.size):
        before = reader[cells[i]]
        reader[cells[i]] = ids[i] if before == 0 or before == ids[i] else many
    return True


def mark_thread_writes(marks, access, now, known, every):
    """Mark cells as written by CTAs and threads, `access` (an array of each), one after the other.

    `marks` are the arrays of writers and readers of `global_races.GlobalShadow`, and those of writes and of reads of
    `global_threads.Marks`: CTAs, threads, epochs, columns, lines. Those of readers and of reads may be empty. `now` are
    the epoch, column and line of this access; `known` are the epochs up to which the threads know of each other's
    writes and of their reads, and the number of no thread; `every` is the number for a cell that several of the threads
    access at once. Returns as `mark_writes`; 0 also if another thread of the CTA has accessed one of the cells since
    these epochs.
    """
    writer, reader, writes, reads = marks
    cells, ids, threads = access
    ordered, seen, nobody = known
    for i in range(cells.size):
        cell, mine, by = cells[i], ids[i], threads[i]
        if writer[cell] > 0 and writer[cell] != mine:
            return 0
        if reader.size and reader[cell] != 0 and reader[cell] != mine:
            return 0
        if (writes[0][cell] == mine and writes[1][cell] != by and writes[1][cell] != nobody
            and writes[2][cell] > ordered):
            return 0
        if (reads[0].size and reads[0][cell] == mine and reads[1][cell] != by and reads[1][cell] != nobody
            and reads[2][cell] > seen):
            return 0
    outcome = 1
    for i in range(cells.size):
        cell = cells[i]
        if writer[cell] > 0 and writer[cell] != ids[i]:
            outcome = 2
        writer[cell] = ids[i]
        together = (writes[0][cell] == ids[i] and writes[1][cell] != threads[i] and writes[1][cell] != nobody
                    and writes[2][cell] == now[0])
        writes[0][cell] = ids[i]
        writes[1][cell] = every if together else threads[i]
        writes[2][cell], writes[3][cell], writes[4][cell] = now
    return outcome


def mark_thread_reads(marks, access, now, known, several, by, first):
    """As `mark_thread_writes`, for reads; the arrays of writers and of writes may be empty. `several` are the numbers
    for a cell that several threads of a CTA have read since the epoch in `known`, and for one that several CTAs have
    read. `by` is as long as the arrays of `access`, and is that of threads if `first`: nothing has been marked then."""
    writer, reader, writes, reads = marks
    cells, ids, threads = access
    ordered, seen, nobody = known
    every, many = several
    for i in range(0 if first else cells.size):
        cell, mine = cells[i], ids[i]
        if writer.size and writer[cell] > 0 and writer[cell] != mine:
            return False
        if (writes[0].size and writes[0][cell] == mine and writes[1][cell] != threads[i] and writes[1][cell] != nobody
            and writes[2][cell] > ordered):
            return False
        again = reads[0][cell] == mine and reads[1][cell] != threads[i] and reads[2][cell] > seen
        by[i] = every if again else threads[i]
    for i in range(cells.size):
        cell = cells[i]
        before = reader[cell]
        reader[cell] = ids[i] if before == 0 or before == ids[i] else many
        together = (reads[0][cell] == ids[i] and reads[1][cell] != by[i] and reads[1][cell] != nobody
                    and reads[2][cell] == now[0])
        reads[0][cell] = ids[i]
        reads[1][cell] = every if together else by[i]
        reads[2][cell], reads[3][cell], reads[4][cell] = now
    return True


def add_products(acc, x, y, total):
    """``total = acc + x @ y`` for matrices (B or 1, m, n), (B or 1, m, k) and (B or 1, k, n), by a product and a sum
    for each k in turn, both rounded."""
    for b in range(total.shape[0]):
        before, left, right = acc[b % acc.shape[0]], x[b % x.shape[0]], y[b % y.shape[0]]
        for i in range(total.shape[1]):
            row = total[b, i]
            row[:] = before[i]
            for k in range(left.shape[1]):
                factor = left[i, k]
                other = right[k]
                for j in range(row.size):
                    row[j] += factor * other[j]


def exchange_keys(rows, halves, bits, stages):
    """Run the steps of a sorting network on each row of keys, in place. See `networks.step_tables`."""
    for r in range(rows.shape[0]):
        row = rows[r]
        count = row.size
        for step in range(bits.size):
            span = 1 << bits[step]
            pair = 2 * span
            if halves[step]:  # keep the lower of each two blocks
                for block in range(count // pair):
                    for i in range(span):
                        row[block * span + i] = min(row[block * pair + i], row[block * pair + span + i])
                count //= 2
                continue
            stage = stages[step]
            for first in range(0, count, pair):
                if first >> stage & 1:
                    for i in range(first, first + span):
                        low = row[i]
                        high = row[i + span]
                        row[i] = max(low, high)
                        row[i + span] = min(low, high)
                else:
                    for i in range(first, first + span):
                        low = row[i]
                        high = row[i + span]
                        row[i] = min(low, high)
                        row[i + span] = max(low, high)


def exchange_pairs(rows, others, halves, bits, stages):
    """As `exchange_keys`, for pairs of a key and another number that decides between equal keys."""
    for r in range(rows.shape[0]):
        row, other = rows[r], others[r]
        count = row.size
        for step in range(bits.size):
            span = 1 << bits[step]
            pair = 2 * span
            if halves[step]:
                for block in range(count // pair):
                    for i in range(span):
                        at = block * pair + i
                        if row[at + span] < row[at] or row[at + span] == row[at] and other[at + span] < other[at]:
                            at += span
                        row[block * span + i] = row[at]
                        other[block * span + i] = other[at]
                count //= 2
                continue
            stage = stages[step]
            for first in range(0, count, pair):
                downwards = first >> stage & 1
                for i in range(first, first + span):
                    j = i + span
                    swaps = row[j] < row[i] or row[j] == row[i] and other[j] < other[i]
                    if swaps != downwards:
                        row[i], row[j] = row[j], row[i]
                        other[i], other[j] = other[j], other[i]
