"""The list of the compiler's mutants fits its code."""

from tests.mutants.compiler import ROOT, applicable
from tests.mutants.compiler_mutants import MUTANTS


def test_sixty_files_or_more_have_a_mutant_that_can_be_made():
    found = applicable(MUTANTS)
    assert len({mutant.file(ROOT) for mutant in found}) >= 60
    for mutant in found:
        text = mutant.file(ROOT).read_text()
        compile(text.replace(mutant.old, mutant.new), str(mutant.file(ROOT)), "exec")


def test_the_tests_of_every_mutant_exist():
    for mutant in MUTANTS:
        assert mutant.tests and all((ROOT / "tests" / test).exists() for test in mutant.tests.split()), mutant.old
