"""Draws what a command prints as a terminal, as SVG. The README's, in the folder in which `make demo` ran:

python scripts/terminal_picture.py docs/pictures/demo.svg harness report
"""

import io
import os
import subprocess
import sys

from rich.console import Console
from rich.text import Text

COLUMNS = 100

out, *command = sys.argv[1:]
done = subprocess.run(command, env=os.environ | {"COLUMNS": str(COLUMNS)}, capture_output=True, text=True, check=True)
console = Console(record=True, width=COLUMNS, file=io.StringIO())
console.print(Text(done.stdout.rstrip("\n")))
console.save_svg(out, title="make demo")
