"""Write into pages what their snippets print: `python tests/tools/shown.py README.md docs/privacy.md`.

`tests/test_docs.py` compares the n-th python block of a page with its n-th text block; this makes them equal again
after numbers or words have changed. Read the difference before it is committed.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path


def shown(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    printed = []
    for snippet in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(snippet, str(page), "exec"), {"__name__": "__main__"})  # noqa: S102 - the page's own code
        printed.append(out.getvalue())
    outputs = iter(printed)

    def again(found: re.Match[str]) -> str:
        return f"```text\n{next(outputs, found[1])}```"

    return re.sub(r"^```text\n(.*?)^```$", again, text, flags=re.DOTALL | re.MULTILINE)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(shown(Path(name)), encoding="utf-8")
