"""`python -m rti_exp.article`: the paper's table alongside your scores.

    python -m rti_exp.article                          everything in evaluations/ and runs/
    python -m rti_exp.article FOLDER ...               evaluations (of rti_exp.evaluate), studies, or folders of them
    python -m rti_exp.article FOLDER --output DIR      where to write article.md and article.html (default: .)

Prints the tables and writes both files. Exit code 0; 1 if they cannot be written, 2 if a folder does not exist.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rti_exp.runs.redaction import redact_output

DEFAULT = (Path("evaluations"), Path("runs"))


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    parser = argparse.ArgumentParser(
        prog="python -m rti_exp.article",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=Path("."), metavar="DIR")
    options = parser.parse_args(arguments)
    missing = [folder for folder in options.folders if not folder.is_dir()]
    if missing:
        print(f"error: no such folder: {missing[0]}; must be a folder with evaluations or runs", file=sys.stderr)
        return 2
    from rich.console import Console

    from rti_exp.analysis.benchmark_scores import collect_scores
    from rti_exp.analysis.paper_table import TITLE, as_html, paper_tables
    from rti_exp.analysis.table_rendering import as_markdown, as_rich
    from rti_exp.runs import write_atomically

    tables = paper_tables(*collect_scores(options.folders or [folder for folder in DEFAULT if folder.is_dir()]))
    Console().print(as_rich(TITLE, tables, file="article.md"))
    paths = (options.output / "article.md", options.output / "article.html")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        write_atomically(paths[0], as_markdown(TITLE, tables))
        write_atomically(paths[1], as_html(tables))
    except OSError as error:
        print(f"error: cannot write: {error}", file=sys.stderr)
        return 1
    print(f"written: {paths[0]}, {paths[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
