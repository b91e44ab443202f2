"""check_shell.sh accepts shell scripts and refuses what bash cannot read."""

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


if __name__ == "__main__":
    unittest.main()
