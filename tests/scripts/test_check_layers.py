"""check_layers.py accepts a tree that keeps the layer law and refuses each way of breaking it."""

import unittest

from support import CheckerTest


class CheckLayers(CheckerTest):
    checker = "check_layers.py"

    def test_lawful_tree(self):
        self.accepts({
            "include/slip/bytes.hpp": "#include <cstddef>\n",
            "include/slip/device.hpp": '#include "slip/bytes.hpp"\n#include <vector>\n',
            "src/base/clock.cpp": "#include <thread>\nauto t = std::chrono::steady_clock::now();\n",
            "src/base/log.cpp": "#include <iostream>\nvoid f() { std::fputs(\"x\", stderr); }\n",
            "src/runtime/core.hpp": '#include "base/clock.hpp"\n#include "runtime/op.hpp"\n',
            "src/backend/cuda/stream.cpp": '#include <cuda_runtime.h>\n#include "runtime/core.hpp"\n',
            "src/comm/cuda_steps.cpp": "#include <cuda.h>\n",
            "src/transport/net/net.cpp": "#include <sys/socket.h>\n#include <sys/epoll.h>\n",
            "src/topo/probe.cpp": "#include <hwloc.h>\n",
            "src/cli/main.cpp": '#include <iostream>\n#include "flow/plan.hpp"\n#include "slip/device.hpp"\n',
        })

    def test_upward_include(self):
        self.refuses({"src/base/x.cpp": '\n#include "runtime/core.hpp"\n'}, "src/base/x.cpp:2:", "layer 1")

    def test_sideways_include(self):
        self.refuses({"src/watch/x.cpp": '#include "backend/table.hpp"\n'}, "src/watch/x.cpp:1:")

    def test_relative_include_is_seen_through(self):
        self.refuses({"src/base/x.cpp": '#include "../comm/plan/ring.hpp"\n', "src/comm/plan/ring.hpp": "\n"}, "comm is layer 3")

    def test_unknown_room(self):
        self.refuses({"src/misc/x.cpp": "\n"}, "src/misc/x.cpp:1:", "no layer number")

    def test_public_header_with_private_include(self):
        self.refuses({"include/slip/a.hpp": '#include "runtime/core.hpp"\n'}, "include/slip/a.hpp:1:", "private")

    def test_public_header_with_library_include(self):
        self.refuses({"include/slip/a.hpp": "#include <fmt/core.h>\n"}, "include/slip/a.hpp:1:", "fmt/core.h")

    def test_homes_of_headers(self):
        for header, words in {
            "cuda_runtime.h": "CUDA", "nvtx3/nvToolsExt.h": "CUDA", "cublasLt.h": "CUDA", "sys/socket.h": "transport",
            "sys/epoll.h": "transport", "netinet/in.h": "transport", "hwloc.h": "topo", "thread": "base",
            "pthread.h": "base", "iostream": "base",
        }.items():
            with self.subTest(header=header):
                self.refuses({"src/runtime/x.cpp": f"#include <{header}>\n"}, "src/runtime/x.cpp:1:", words)

    def test_cuda_in_a_plain_file_of_comm(self):
        self.refuses({"src/comm/plan/ring.cpp": "#include <cuda_runtime.h>\n"}, "src/comm/plan/ring.cpp:1:")

    def test_homes_of_calls(self):
        for code in ('auto v = std::getenv("X");', "auto t = std::chrono::steady_clock::now();", "clock_gettime(0, &t);",
                     'std::fprintf(stderr, "x");', "std::cerr << 1;", "std::jthread t;", "int f = ::socket(1, 2, 3);",
                     'int f = memfd_create("x", 0);'):
            with self.subTest(code=code):
                self.refuses({"src/flow/x.cpp": f"\n\n{code}\n"}, "src/flow/x.cpp:3:")

    def test_cli_may_print_but_not_read_the_clock(self):
        self.accepts({"src/cli/x.cpp": 'void f() { std::fputs("x", stderr); }\n'})
        self.refuses({"src/cli/x.cpp": "auto t = std::chrono::system_clock::now();\n"}, "clock")

    def test_comments_and_strings_do_not_count(self):
        self.accepts({"src/flow/x.cpp": '// std::getenv, stderr\n/* #include <thread>\n steady_clock */\n'
                                        'auto s = "getenv stderr"; auto r = R"(std::thread)"; int n = 1\'000;\n'})


if __name__ == "__main__":
    unittest.main()
