"""After an interrupt, a process continues normally."""

from tests.gpu import run_child


def test_an_interrupted_import_of_the_language_starts_again():
    """The interrupt comes after the declaration of each op in turn."""
    told = run_child("""
        import numpy as np
        import tilejit as tile
        from tilejit.ir import op

        declare, seen = op.Op.__init__, set()

        def interrupted(self, function, *rest, **options):
            declare(self, function, *rest, **options)
            if function.__qualname__ not in seen:
                seen.add(function.__qualname__)
                raise KeyboardInterrupt

        op.Op.__init__ = interrupted
        kernel = tile.jit(source="def k(x): tile.store(x[0:64], tile.exp(tile.load(x[0:64])))")
        x, times = np.zeros(64, np.float32), 0
        while True:
            try:
                kernel[1](x)
                break
            except KeyboardInterrupt:
                times += 1
        print(times == len(seen) > 50, (x == 1).all())
    """)
    assert told.split() == ["True", "True"]
