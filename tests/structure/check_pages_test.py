#!/usr/bin/env python3
"""Tests check_pages with pages made up."""
import importlib.machinery
import importlib.util
import pathlib
import unittest

loader = importlib.machinery.SourceFileLoader("check_pages", str(pathlib.Path(__file__).parent / "check_pages"))
check_pages = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_pages", loader))
loader.exec_module(check_pages)

WIDE = "word " * 25


def faults(name, *lines):
    return list(check_pages.faults(name, "\n".join(lines) + "\n"))


class Lines(unittest.TestCase):
    def test_a_page_may_have_as_many_lines_as_its_kind(self):
        self.assertEqual(faults("docs/evidence/gpu.md", *["a"] * 60), [])
        (fault,) = faults("docs/evidence/gpu.md", *["a"] * 61)
        self.assertIn("docs/evidence/gpu.md: has 61 lines, and its limit is 60", fault)

    def test_the_first_pattern_that_fits_counts(self):
        limits = {name: check_pages.limit_of(name) for name in ("README.md", "docs/guide/cluster.md", "docs/guide/operators.md",
                                                                "docs/hooks.md", "tests/README.md", "docs/notes/2026-11-gpu.md")}
        self.assertEqual(list(limits.values()), [120, 150, 100, 40, 80, None])

    def test_every_line_counts_once(self):
        self.assertEqual(len(faults("docs/evidence/gpu.md", *["| cell " * 50] * 61)), 1)


class Columns(unittest.TestCase):
    def test_wide_prose_is_named_by_its_line(self):
        (fault,) = faults("docs/guide/operators.md", "# Page", "", WIDE)
        self.assertTrue(fault.startswith("docs/guide/operators.md:3: "), fault)

    def test_tables_code_and_notes_may_be_wider(self):
        self.assertEqual(faults("docs/guide/operators.md", "| " + WIDE, "    " + WIDE, "```sh", WIDE, "```"), [])
        self.assertEqual(faults("docs/notes/2026-11-gpu.md", WIDE), [])

    def test_characters_count_and_not_bytes(self):
        self.assertEqual(faults("docs/guide/operators.md", "·" * 120), [])


if __name__ == "__main__":
    unittest.main()
