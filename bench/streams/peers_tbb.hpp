// oneTBB doing the work of the stream benchmarks, written the way its own users would to make it fast: in the
// default arena (the whole machine), with bypass edges where they help. Each function does the work once and
// returns nanoseconds per unit; without SLIP_BENCH_TBB they return nothing. They throw std::runtime_error if
// the bodies did not run as often as they should have.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "support/harness.hpp"

namespace slip::bench {

inline constexpr std::size_t kTbbFanWidth = 8;

// Lightweight bodies run inside the put instead of as a task of their own: cheaper, but on the thread that
// puts, so they overlap with nothing.
enum class TbbPolicy { kQueueing, kLightweight };

// How a round or a hop hands over to the next one: an edge, or a try_put from the body.
enum class TbbPingPong { kEdges, kTryPut, kTryPutLightweight };

// Continue nodes join by counting their predecessors; the other form counts in an atomic of the benchmark.
// In the lightweight forms the eight are lightweight and the join is not, as a cycle of nothing but
// lightweight nodes would be endless recursion.
enum class TbbFan { kContinueNodes, kContinueNodesLightweight, kAtomicJoin, kAtomicJoinLightweight };

// One thread spawning everything, or a spawner for each worker.
enum class TbbSpawn { kOneThread, kEveryThread };

// Nanoseconds per node.
struct TbbChainCost {
  double build = 0;
  double run = 0;

  double build_ns() const { return build; }
  double run_ns() const { return run; }
  double total_ns() const { return build + run; }
};

// A serial function_node fed `count` messages.
std::optional<double> tbb_function_node(std::size_t count, TbbPolicy policy);

// The same, with the first body waiting until `depth` messages are in; the rest follow when it is open.
std::optional<double> tbb_function_node_gated(std::size_t count, std::size_t depth, TbbPolicy policy);

// `count` continue_nodes in a row, built and then run once.
std::optional<TbbChainCost> tbb_continue_chain(std::size_t count, TbbPolicy policy);

// Two serial function_nodes handing one message to and fro `count` times.
std::optional<double> tbb_ping_pong(std::size_t count, TbbPingPong form);

// `count` rounds of kTbbFanWidth nodes and one that joins them and starts the next round.
std::optional<double> tbb_fan(std::size_t count, TbbFan form);

// `count` empty tasks in one task_group.
std::optional<double> tbb_task_group(std::size_t count, TbbSpawn spawn);

// Every form of the above as a peer of a bar (which takes the best); counts shrink with --quick.
std::vector<Peer> tbb_function_node_peers(std::size_t count);
std::vector<Peer> tbb_function_node_gated_peers(std::size_t count, std::size_t depth);
std::vector<Peer> tbb_continue_chain_peers(std::size_t count,
                                           double (TbbChainCost::*part)() const = &TbbChainCost::total_ns);
std::vector<Peer> tbb_ping_pong_peers(std::size_t count);
std::vector<Peer> tbb_fan_peers(std::size_t count);
std::vector<Peer> tbb_task_group_peers(std::size_t count);

}  // namespace slip::bench
