// The parts of the benchmark of networks; main.cpp adds them to the harness.
#pragma once

#include "support/harness.hpp"

namespace slip::bench {

void add_plugin_bars(Harness& harness);
void add_ucx_bars(Harness& harness);
// The other process of a measurement over UCX or TCP, started with kPeerWord as its first argument.
inline constexpr const char* kPeerWord = "--peer";
int run_peer(int argc, char** argv);

}  // namespace slip::bench
