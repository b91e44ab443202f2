"""bench/peers/bars.py: what it takes for reached, missed and not measured."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import ROOT


def row(lib, transport, variant, op, size, us, ok="ok"):
    return "\t".join(map(str, [1, lib, transport, variant, op, 2, size, size, us, us, us, us, 5, 1, ok]))


class Bars(unittest.TestCase):
    def bars(self, *rows):
        """Exit status, {name: bar} and what is printed."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "results.tsv").write_text("\n".join(rows) + "\n")
            out = Path(folder) / "bars.json"
            done = subprocess.run([sys.executable, "-B", str(ROOT / "bench/peers/bars.py"), folder, str(out)],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.stderr, "")
            return done.returncode, {bar["name"]: bar for bar in json.loads(out.read_text())["bars"]}, done.stdout

    def test_tuned_peers_are_not_as_they_come(self):
        at = ("allreduce_ip", 32 << 10)
        status, bars, text = self.bars(row("slip", "shm", "-", *at, 10), row("mpi", "shm", "nocma+keep/vec", *at, 14),
                                       row("mpi", "shm", "-", *at, 17), row("limit", "shm-copy", "-", *at, 8),
                                       row("limit", "shm", "-", *at, 1))
        name = "all_reduce_2_ranks_32KiB"
        verdicts = {key[len(name):]: bar["verdict"] for key, bar in bars.items() if key.startswith(name)}
        self.assertEqual(verdicts, {"_vs_peer": "ok", "_vs_peer_as_it_comes": "missed", "_vs_peer_at_its_best": "ok",
                                    "_vs_limit_copy": "ok", "_registered_vs_limit": "skipped"})
        self.assertIn(f"BAR collectives {name}_vs_peer_as_it_comes 10us 17us 1.70x >=1.8x missed\n", text)
        self.assertIn("| all_reduce | shm | 2 | 32 KiB | 10.00 | - | 14.00 | mpi nocma+keep/vec | 17.00 | mpi |", text)
        self.assertEqual(status, 1)

    def test_registered_is_not_ours_as_it_comes(self):
        at = ("reduce_scatter", 2 << 20)
        _, bars, _ = self.bars(row("slip", "shm", "registered", *at, 5), row("slip", "shm", "-", *at, 10),
                               row("mpi", "shm", "-", *at, 9), row("limit", "shm", "-", *at, 4))
        self.assertEqual(bars["reduce_scatter_2_ranks_2MiB_vs_peer"]["verdict"], "missed")
        self.assertEqual(bars["reduce_scatter_2_ranks_2MiB_registered_vs_limit"]["verdict"], "ok")

    def test_mean_over_sizes(self):
        rows = []
        for size, peer in ((4 << 10, 10.5), (32 << 10, 13), (512, 1)):  # 512 B is not asked for
            rows += [row("slip", "tcp", "-", "bcast", size, 10), row("gloo", "tcp", "async", "bcast", size, peer)]
        status, bars, _ = self.bars(*rows)
        self.assertAlmostEqual(bars["broadcast_2_ranks_tcp_mean_vs_peer"]["ratio"], (1.05 * 1.3) ** 0.5)
        self.assertEqual(bars["broadcast_2_ranks_tcp_mean_vs_peer"]["verdict"], "ok")
        self.assertNotIn("broadcast_2_ranks_tcp_512B_vs_peer", bars)
        self.assertEqual(status, 0)

    def test_wrong_results_do_not_count(self):
        at = ("alltoall", 4 << 10)
        status, bars, text = self.bars(row("slip", "shm", "-", *at, 1, "WRONG"), row("mpi", "shm", "-", *at, 9))
        self.assertEqual(bars["all_to_all_2_ranks_4KiB_vs_peer"]["verdict"], "skipped")
        self.assertIn("wrong result, left out: slip shm", text)
        self.assertEqual(status, 1)


if __name__ == "__main__":
    unittest.main()
