"""Text tables for people."""


def aligned(rows, alignment):
    """Lines of text with aligned columns for the words of `rows`; `alignment`: l or r for each column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(alignment))]
    sides = {"l": str.ljust, "r": str.rjust}
    return "\n".join("  ".join(sides[side](word, width) for word, width, side in zip(row, widths, alignment)).rstrip()
                     for row in rows)
