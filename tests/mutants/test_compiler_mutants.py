"""The list of the compiler's mutants fits its code."""

from tests.mutants.compiler import ROOT, applicable
from tests.mutants.compiler_mutants import MUTANTS


def test_every_mutant_can_be_made_in_the_code_as_it_is():
    possible = applicable(MUTANTS)
    assert [(mutant.folder, mutant.old) for mutant in MUTANTS if mutant not in possible] == []


def test_every_mutant_changes_a_file_of_its_own_into_other_code_that_compiles():
    files = {mutant.file(ROOT): mutant for mutant in applicable(MUTANTS)}
    assert len(files) == len(applicable(MUTANTS)) >= 90
    for file, mutant in files.items():
        text = file.read_text()
        changed = compile(text.replace(mutant.old, mutant.new), str(file), "exec")
        assert changed != compile(text, str(file), "exec"), mutant.old


def test_the_tests_of_every_mutant_exist():
    for mutant in MUTANTS:
        assert mutant.tests and all((ROOT / "tests" / test).exists() for test in mutant.tests.split()), mutant.old
