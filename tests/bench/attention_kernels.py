"""What the benchmark of attention runs beside the package's kernel: functions of scores, and a kernel as users write it."""

import tilejit as tile


@tile.jit
def alibi(s, batch, head, rows, columns, slopes):
    return s + tile.load(slopes[head]) * (columns - rows).to(tile.float32)


@tile.jit
def same_document(batch, head, rows, columns, ids):
    return tile.load(ids[rows]) == tile.load(ids[columns])


@tile.jit
def simple_attention(Q, K, V, OUT, scale, CAUSAL: tile.constexpr, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr,
                     STAGES: tile.constexpr, ROLES: tile.constexpr):
    """Softmax in base 2 of `scale` times the products of Q [heads, rows, D] and K, by V; without a bound, the keys are
    whole blocks. With one, the last rows are the first CTAs', since they see the most."""
    head, first = tile.program_id(1), (tile.num_programs(0) - 1 - tile.program_id(0)) * BM
    q, rows = tile.load(Q[head, first:first + BM, 0:D]), first + tile.arange(BM)
    top, total, acc = tile.full((BM,), -1e30, tile.float32), tile.zeros((BM,)), tile.zeros((BM, D))
    for n in tile.pipelined(range(0, first + BM if CAUSAL else K.shape[1], BN), stages=STAGES, warp_specialize=ROLES):
        s = tile.dot(q, tile.load(K[head, n:n + BN, 0:D]).T) * scale
        if CAUSAL:
            s = tile.where(rows[:, None] >= n + tile.arange(BN)[None, :], s, -float("inf"))
        above = tile.maximum(top, tile.max(s, axis=1))
        powers, by = tile.exp2(s - above[:, None]), tile.exp2(top - above)
        total, top = total * by + tile.sum(powers, axis=1), above
        acc = tile.dot(powers.to(Q.dtype), tile.load(V[head, n:n + BN, 0:D]), acc * by[:, None])
    tile.store(OUT[head, first:first + BM, 0:D], (acc / total[:, None]).to(OUT.dtype))


def simple_configs(causal: bool) -> list[dict]:
    """What users try: 18 configurations. Blocks of 96 columns are not whole in powers of two."""
    return [dict(BM=bm, num_warps=warps, BN=bn, STAGES=2, ROLES=roles) for bm, warps in ((128, 8), (64, 4), (192, 12))
            for bn in ((64, 96, 128) if causal else (64, 128)) for roles in (False, True)]
