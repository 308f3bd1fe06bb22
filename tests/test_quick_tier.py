"""The quick tier has tests of every folder of the package."""

import ast

from tests.quick_tier import FILES, NAMED, QUICK, TESTS, is_quick

PACKAGE = TESTS.parent / "tilejit"


def test_every_folder_of_the_package_and_the_docs_have_quick_tests():
    files = (path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in files}
    assert folders | {"docs"} == set(QUICK)
    assert all(QUICK.values())


def test_every_test_that_is_named_exists():
    for name in NAMED:
        file, _, test = name.partition("::")
        body = ast.parse((TESTS / file).read_text()).body
        functions = {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
        assert functions and (not test or test.partition("[")[0] in functions), name


def test_a_test_is_quick_if_its_file_it_or_its_case_is_named():
    docs = TESTS / "docs" / "test_docs.py"
    assert is_quick(docs, "test_every_link_of_a_page_has_a_target[copies.md]")
    example = "test_every_example_of_a_page_runs_and_prints_the_output_shown_below_it"
    assert is_quick(docs, f"{example}[README.md]") and not is_quick(docs, f"{example}[products.md]")
    assert is_quick(TESTS / "frontend" / "test_loops.py", "test_anything[1]")
    other = TESTS / "fuzz" / "test_fuzz.py"
    assert other not in FILES and not is_quick(other, "test_anything")
