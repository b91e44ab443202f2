"""check_shell.sh accepts scripts, and refuses what bash cannot read and a damaged first line."""

import unittest

from support import CheckerTest


class CheckShell(CheckerTest):
    checker = "check_shell.sh"

    def test_a_script(self):
        self.accepts({"a.sh": "#!/usr/bin/env bash\nif true; then echo yes; fi\n"})

    def test_no_script(self):
        self.refuses({"bench/a.sh": "#!/usr/bin/env bash\nthen echo yes; fi\n"}, "bench/a.sh: line 2")

    def test_no_interpreter(self):
        self.refuses({"a.sh": "#!/ usr / bin / env bash\ntrue\n"}, "a.sh:1:")

    def test_python(self):
        self.accepts({"a.py": "#!/usr/bin/env python3\nprint()\n", "module.py": '"""A module."""\n', "empty.py": ""})

    def test_no_interpreter_of_python(self):
        for first in ("#!/ usr / bin / env python3", "#!/usr/bin/env bash", "#! /usr/bin/env python3", "#!/usr/bin/env python3\r"):
            self.refuses({"bench/a.py": first + "\nprint()\n"}, "bench/a.py:1:", "python3")

    def test_no_interpreter_without_an_extension(self):
        self.accepts({".ci/run": "#!/usr/bin/env bash\ntrue\n"})
        self.refuses({".ci/run": "#!/ usr / bin / env bash\ntrue\n"}, ".ci/run:1:")


if __name__ == "__main__":
    unittest.main()
