"""The shell blocks of a Markdown document, run in order in one shell, as if a reader copied them."""
import pathlib
import re
import subprocess
import tempfile
from dataclasses import dataclass

FENCE = re.compile(r"^(`{3,})(\S*)\s*$")
TRACE = "\x1f"  # Begins a line of the shell's trace; programs do not print it.


@dataclass
class Block:
    line: int  # of its first command, counted from 1
    commands: list  # lines


@dataclass
class Failure:
    line: int  # of the command
    exit_code: int
    block: Block
    output: str  # of the block, with each command before its output


def shell_blocks(text):
    """The blocks with language `sh`. Raises ValueError for an unclosed fence."""
    blocks, fence = [], None
    for number, line in enumerate(text.splitlines(), start=1):
        match = FENCE.match(line)
        if fence is None and match:
            fence, opened = match[1], number
            block = Block(number + 1, []) if match[2] == "sh" else None
        elif fence is not None and match and match[1] == fence and not match[2]:
            if block:
                blocks.append(block)
            fence = None
        elif fence is not None and block:
            block.commands.append(line)
    if fence is not None:
        raise ValueError(f"line {opened}: the fence is not closed")
    return blocks


def script_of(blocks):
    """All commands, each on the line that it has in the document, so that the shell's own messages name that line."""
    lines = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines)) + block.commands
    return "\n".join(lines) + "\n"


def run(document, folder):
    """Runs the shell blocks of `document` in one bash that begins in `folder`. Returns the first Failure, or None.

    A command fails as with `set -e -o pipefail`. Changes and exports of the commands, such as PATH and the current
    folder, persist for later blocks. Raises ValueError for a document without shell blocks.
    """
    blocks = shell_blocks(document.read_text())
    if not blocks:
        raise ValueError(f"{document}: no block in the language sh")
    with tempfile.TemporaryDirectory() as work:
        script = pathlib.Path(work) / document.name
        script.write_text(script_of(blocks))
        failed = pathlib.Path(work) / "failed"
        trap = f"trap '{{ echo $LINENO $? >\"{failed}\"; }} 2>/dev/null' ERR"  # Not traced itself.
        trace = f"PS4='{TRACE}${{LINENO}} '"
        # A file: a pipe would stay open as long as a background process has it.
        with open(pathlib.Path(work) / "output", "w+", errors="replace") as output:
            ended = subprocess.run(["bash", "--norc", "--noprofile", "-c", f"set -E -e -o pipefail\n{trap}\n{trace}\nset -x\n. '{script}'"],
                                   cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False)
            output.seek(0)
            printed = output.read()
        if ended.returncode == 0:
            return None
        return failure_of(blocks, printed, ended.returncode, failed.read_text() if failed.exists() else "")


def failure_of(blocks, printed, exit_code, failed):
    """`failed`: line and exit code of the command, from the trap. It is empty if the shell ended by itself, e.g. after
    `exit` or a syntax error. The error is then in the block that was traced last."""
    traced = [int(line) for line in re.findall(rf"^{TRACE}+(\d+) ", printed, re.MULTILINE)]
    line, code = map(int, failed.split()) if failed else (traced[-1] if traced else blocks[0].line, exit_code)
    block = [each for each in blocks if each.line <= line][-1]
    return Failure(line, code, block, output_from(block.line, printed))


def output_from(line, printed):
    """The output since the first command on or after `line`, without the commands of the surrounding script."""
    shown, begun = [], False
    for each in printed.splitlines():
        match = re.match(rf"{TRACE}+(\d+) (.*)", each)
        begun = begun or (match and int(match[1]) >= line and not match[2].startswith(". "))
        if begun:
            shown.append(f"$ {match[2]}" if match else each)
    return "\n".join(shown)
