"""`python -m rti_exp.article`: the article's table beside what you have measured.

    python -m rti_exp.article                          all in evaluations/ and runs/
    python -m rti_exp.article FOLDER ...               evaluations (of rti_exp.evaluate), studies, or folders of them
    python -m rti_exp.article FOLDER --output DIR      where article.md and article.html go (default: .)

Prints the tables and writes both files. Exit code 0; 1 if they could not be written, 2 if a folder is not there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DEFAULT = (Path("evaluations"), Path("runs"))


def main(arguments: Sequence[str] | None = None) -> int:
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
        print(f"error: {missing[0]}: must be a folder with evaluations or runs; there is none", file=sys.stderr)
        return 2
    from rich.console import Console

    from rti_exp.analysis import article, tables
    from rti_exp.analysis.benchmarks import measured_in
    from rti_exp.runs import write_atomically

    sheets = article.sheets(*measured_in(options.folders or [folder for folder in DEFAULT if folder.is_dir()]))
    Console().print(tables.as_rich(article.TITLE, sheets, file="article.md"))
    paths = (options.output / "article.md", options.output / "article.html")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        write_atomically(paths[0], tables.as_markdown(article.TITLE, sheets))
        write_atomically(paths[1], article.as_html(sheets))
    except OSError as error:
        print(f"error: cannot write: {error}", file=sys.stderr)
        return 1
    print(f"written: {paths[0]}, {paths[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
