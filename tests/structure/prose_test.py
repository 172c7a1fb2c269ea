#!/usr/bin/env python3
"""Tests prose with files made up."""
import importlib.machinery
import importlib.util
import pathlib
import tempfile
import unittest

loader = importlib.machinery.SourceFileLoader("prose", str(pathlib.Path(__file__).parent / "prose"))
prose = importlib.util.module_from_spec(importlib.util.spec_from_loader("prose", loader))
loader.exec_module(prose)


def sentences(name, text):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.write_text(text)
        return list((prose.read_document if name.endswith(".md") else prose.read_comments)(str(path)))


class Documents(unittest.TestCase):
    def test_headings_and_code_are_left_out_and_items_and_cells_are_paragraphs(self):
        found = sentences("page.md", "\n".join([
            "# A heading of words", "", "One sentence of words [with a link](page.md#of-it). Another one", "on two lines.", "",
            "- an item without a mark", "- and one more item", "", "```sh", "some command in code", "```", "",
            "| one cell of words | 5 | |", "|---|---|---|", "| a second cell here | x | |"]))
        self.assertCountEqual([s.text for s in found if not s.is_cell],
                         ["One sentence of words with a link.", "Another one on two lines.", "an item without a mark",
                          "and one more item", "one cell of words", "a second cell here"])
        self.assertEqual([s.words for s in found if s.is_cell], [4, 0, 4, 1])

    def test_places_are_given(self):
        found = sentences("page.md", "First line of words.\n\nThird line of words.\n")
        self.assertRegex(found[0].place, r"page\.md:2$")


class Comments(unittest.TestCase):
    def test_runs_of_lines_are_paragraphs(self):
        found = sentences("code.h", "\n".join([
            "// A comment that goes over", "// two lines. A second sentence of it.", "int a;  // The words behind code.",
            "//", "// - an item of words", "// - another item here", "#include <a>  // NOLINT"]))
        self.assertEqual([s.text for s in found],
                         ["A comment that goes over two lines.", "A second sentence of it.", "The words behind code.",
                          "an item of words", "another item here"])

    def test_build_files_have_another_mark(self):
        self.assertEqual([s.text for s in sentences("a.cmake", "# Some words of it.\nset(a b)\n")], ["Some words of it."])


class Faults(unittest.TestCase):
    def faults(self, text):
        return prose.Sentence(text, prose.count_words(text), "here").faults

    def test_each_is_found(self):
        self.assertEqual(self.faults("What a rank sends is counted."), ["openers"])
        self.assertEqual(self.faults("All hooks but for noop average."), ["phrases"])
        self.assertEqual(self.faults(" ".join(["word"] * 36)), ["long"])
        self.assertEqual(self.faults(" ".join(["word"] * 35)), [])

    def test_questions_may_begin_with_a_question_word(self):
        self.assertEqual(self.faults("Which hook should be used?"), [])

    def test_cells_are_shorter_than_sentences(self):
        for words, faults in ((26, ["cells"]), (25, [])):
            self.assertEqual(prose.Sentence("", words, "here", is_cell=True).faults, faults)


class Judgement(unittest.TestCase):
    def test_a_limit_that_is_missed_fails(self):
        good = [prose.Sentence("Words of it.", 3, "a:1")] * 999
        self.assertTrue(prose.judge("documents", good, 0))
        self.assertTrue(prose.judge("documents", good + [prose.Sentence("Nor is it so.", 4, "a:2")], 0))
        self.assertFalse(prose.judge("documents", good + [prose.Sentence("Nor is it so.", 4, "a:2")] * 3, 0))


if __name__ == "__main__":
    unittest.main()
