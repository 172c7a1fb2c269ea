#!/usr/bin/env python3
"""Tests shell_blocks.py with small documents."""
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import tempfile
import unittest

import shell_blocks

HERE = pathlib.Path(__file__).resolve().parent


def imported_run_readme():
    loader = importlib.machinery.SourceFileLoader("run_readme", str(HERE / "run_readme"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_readme", loader))
    loader.exec_module(module)
    return module


class Table(unittest.TestCase):
    """README.md's table of quickstart's result."""

    README = "hook             sent per rank    training time    speed-up         validation loss\n" \
             "none             378 MB           1 min 00 s       1.0 x            2.0180\n" \
             "int8             96.0 MB          31 s             1.9 x            2.0103\n"

    def wrong_rows(self, int8):
        with tempfile.TemporaryDirectory() as folder:
            runs = pathlib.Path(folder)
            (runs / "quickstart-none.txt").write_text("training loss    1.9\nvalidation loss  2.0180\nsent per rank    378 MB\n")
            (runs / "quickstart-int8.txt").write_text(int8)
            return imported_run_readme().wrong_rows(self.README, runs)

    def test_rows_that_trainings_confirm(self):
        self.assertEqual(self.wrong_rows("validation loss  2.0113\nsent per rank    96.0 MB\n"), [])

    def test_other_losses_and_bytes(self):
        self.assertEqual(self.wrong_rows("validation loss  2.1103\nsent per rank    96.0 MB\n"),
                         ["int8 has 96.0 MB and 2.0103, but the training 96.0 MB and 2.1103"])
        self.assertEqual(len(self.wrong_rows("validation loss  2.0103\nsent per rank    97.0 MB\n")), 1)

    def test_the_real_table_is_found(self):
        module = imported_run_readme()
        rows = module.ROW.findall((module.ROOT / "README.md").read_text())
        self.assertEqual([hook for hook, _, _ in rows], ["none", "bf16_compress", "int8"])


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_document(self, *lines):
        (self.folder / "README.md").write_text("\n".join(lines) + "\n")
        return shell_blocks.run(self.folder / "README.md", self.folder)


class Blocks(unittest.TestCase):
    def test_those_in_the_language_sh(self):
        blocks = shell_blocks.shell_blocks("# Title\n\n```sh\none\n  two\n```\n\n```text\nthree\n```\n````sh\n```\n````\n```\nfour\n```\n")
        self.assertEqual([(each.line, each.commands) for each in blocks], [(4, ["one", "  two"]), (12, ["```"])])

    def test_a_fence_that_is_not_closed(self):
        with self.assertRaisesRegex(ValueError, "line 2: the fence is not closed"):
            shell_blocks.shell_blocks("text\n```sh\ntrue\n")

    def test_commands_stay_in_their_lines(self):
        text = "a\n```sh\nb\nc\n```\nd\n```sh\ne\n```\n"
        self.assertEqual(shell_blocks.script_of(shell_blocks.shell_blocks(text)), "\n\nb\nc\n\n\n\ne\n")


class Runs(InAFolder):
    def test_all_blocks_in_order(self):
        self.assertIsNone(self.run_document("```sh", "echo first >log", "```", "```sh", "echo second >>log", "```"))
        self.assertEqual((self.folder / "log").read_text(), "first\nsecond\n")

    def test_what_is_exported_and_the_current_folder_hold_for_later_blocks(self):
        (self.folder / "bin").mkdir()
        program = self.folder / "bin/program-of-a-reader"
        program.write_text("#!/bin/sh\necho \"$GREETING\" >greeting\n")
        program.chmod(0o755)
        self.assertIsNone(self.run_document("```sh", "export PATH=$PWD/bin:$PATH GREETING=hello", "mkdir there && cd there", "```",
                                            "```sh", "program-of-a-reader", "```"))
        self.assertEqual((self.folder / "there/greeting").read_text(), "hello\n")

    def test_other_languages_do_not(self):
        self.assertIsNone(self.run_document("```text", "false", "```", "```", "false", "```", "```sh", "true", "```"))

    def test_a_failure_has_its_line_its_exit_code_and_the_output_of_its_block(self):
        failure = self.run_document("```sh", "echo of another block", "```", "", "```sh", "echo before >&2", "sh -c 'echo why; exit 5'",
                                    "echo never", "```")
        self.assertEqual((failure.line, failure.exit_code, failure.block.line), (7, 5, 6))
        self.assertEqual(failure.output, "$ echo before\nbefore\n$ sh -c 'echo why; exit 5'\nwhy")

    def test_nothing_runs_after_a_failure(self):
        self.run_document("```sh", "false", "```", "```sh", "touch later", "```")
        self.assertFalse((self.folder / "later").exists())

    def test_a_command_of_several_lines_fails_at_its_first(self):
        failure = self.run_document("```sh", "true", "sh -c \\", "  'exit 4'", "```")
        self.assertEqual((failure.line, failure.exit_code), (3, 4))

    def test_a_pipe_fails_with_any_of_its_commands(self):
        self.assertEqual(self.run_document("```sh", "sh -c 'exit 3' | cat", "```").exit_code, 3)

    def test_an_unknown_program_is_named_with_its_line(self):
        failure = self.run_document("text", "```sh", "program-that-nobody-has", "```")
        self.assertEqual((failure.line, failure.exit_code), (3, 127))
        self.assertRegex(failure.output, "README.md: line 3: program-that-nobody-has: command not found")

    def test_exit_and_syntax_errors_are_failures(self):
        failure = self.run_document("```sh", "true", "exit 9", "```")
        self.assertEqual((failure.line, failure.exit_code), (3, 9))
        failure = self.run_document("```sh", "true", "```", "```sh", "echo (", "```")
        self.assertNotEqual(failure.exit_code, 0)
        self.assertRegex(failure.output, "line 5: syntax error")

    def test_a_process_in_the_background_is_not_waited_for(self):
        self.assertIsNone(self.run_document("```sh", "sleep 1000 & echo $! >pid", "```"))
        os.kill(int((self.folder / "pid").read_text()), 9)

    def test_a_document_without_blocks_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no block in the language sh"):
            self.run_document("text")


class Clones(InAFolder):
    """run_readme in a checkout of three files: committed, changed and new."""

    def setUp(self):
        super().setUp()
        self.checkout = self.folder / "checkout"
        (self.checkout / "tests/docs").mkdir(parents=True)
        for name in ("run_readme", "shell_blocks.py"):
            target = self.checkout / "tests/docs" / name
            target.write_text((HERE / name).read_text())
            target.chmod(0o755)
        self.readme("```sh", "true", "```")
        (self.checkout / ".gitignore").write_text("build/\n__pycache__/\n")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "All")

    def git(self, *arguments):
        subprocess.run(["git", "-C", str(self.checkout), *arguments], check=True)

    def readme(self, *lines):
        (self.checkout / "README.md").write_text("\n".join(lines) + "\n")

    def run_readme(self):
        return subprocess.run([self.checkout / "tests/docs/run_readme"], capture_output=True, text=True, check=False)

    def test_blocks_run_in_a_clone_with_what_is_not_committed_and_without_what_is_ignored(self):
        (self.checkout / "new").write_text("new\n")
        (self.checkout / "build").mkdir()
        (self.checkout / "build/left").write_text("")
        self.readme("```sh", "cat new", "test ! -e build", "touch trace", "git log --oneline", "```")
        ended = self.run_readme()
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, r"README.md: all shell blocks ran, in \d+ s\n")
        self.assertFalse((self.checkout / "trace").exists())

    def test_a_failing_block_is_reported(self):
        self.readme("# Title", "```sh", "echo why >&2; false", "```")
        ended = self.run_readme()
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(ended.stderr,
                         "README.md:3: exit code 1 in the block that begins at line 3:\n$ echo why\nwhy\n$ false\n")

    def test_a_block_that_runs_the_test_itself_is_an_error(self):
        self.readme("```sh", "tests/docs/run_readme", "```")
        ended = self.run_readme()
        self.assertEqual(ended.returncode, 1)
        self.assertIn("README.md must not run its own test", ended.stderr)

    def test_without_git_it_is_skipped(self):
        module = imported_run_readme()
        module.ROOT = self.folder
        os.environ.pop(module.RUNS, None)
        self.assertEqual(module.main(), 77)


if __name__ == "__main__":
    unittest.main()
