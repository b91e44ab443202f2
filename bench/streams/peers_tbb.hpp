// The workloads of the stream benchmarks with oneTBB, as a user of oneTBB would write them for speed: in the default
// arena (the whole machine), with bypass edges where they help. Each function runs the workload once and returns
// nanoseconds per unit. Without SLIP_BENCH_TBB it returns nothing. It throws std::runtime_error if the bodies did not
// run as often as expected.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "support/harness.hpp"

namespace slip::bench {

inline constexpr std::size_t kTbbFanWidth = 8;

// A lightweight body runs inside the put, not as a task of its own. That is cheaper, but it takes the time of the
// thread that puts, so it overlaps with nothing.
enum class TbbPolicy { kQueueing, kLightweight };

// How a hop starts the next one: by an edge, or by a try_put in the body.
enum class TbbPingPong { kEdges, kTryPut, kTryPutLightweight };

// How the nodes of a round join. Continue nodes count their predecessors; the other form counts in an atomic of the
// benchmark. In the lightweight forms the eight nodes are lightweight and the join is not: a cycle of lightweight nodes
// only would be an endless recursion.
enum class TbbFan { kContinueNodes, kContinueNodesLightweight, kAtomicJoin, kAtomicJoinLightweight };

// Whether one thread spawns all tasks, or each worker spawns a part of them.
enum class TbbSpawn { kOneThread, kEveryThread };

// Nanoseconds per node.
struct TbbChainCost {
  double build = 0;
  double run = 0;

  double build_ns() const { return build; }
  double run_ns() const { return run; }
  double total_ns() const { return build + run; }
};

// A serial function_node that gets `count` messages.
std::optional<double> tbb_function_node(std::size_t count, TbbPolicy policy);

// The same, but the first body waits until `depth` messages are queued. The others are put afterwards.
std::optional<double> tbb_function_node_gated(std::size_t count, std::size_t depth, TbbPolicy policy);

// `count` continue_nodes in a row, built and then run once.
std::optional<TbbChainCost> tbb_continue_chain(std::size_t count, TbbPolicy policy);

// Two serial function_nodes that pass one message to each other `count` times.
std::optional<double> tbb_ping_pong(std::size_t count, TbbPingPong form);

// `count` rounds of kTbbFanWidth nodes and one that joins them and starts the next round.
std::optional<double> tbb_fan(std::size_t count, TbbFan form);

// `count` empty tasks in one task_group.
std::optional<double> tbb_task_group(std::size_t count, TbbSpawn spawn);

// Every form of these workloads as a peer of a bar, which compares with the best one. --quick makes the counts smaller.
std::vector<Peer> tbb_function_node_peers(std::size_t count);
std::vector<Peer> tbb_function_node_gated_peers(std::size_t count, std::size_t depth);
std::vector<Peer> tbb_continue_chain_peers(std::size_t count,
                                           double (TbbChainCost::*part)() const = &TbbChainCost::total_ns);
std::vector<Peer> tbb_ping_pong_peers(std::size_t count);
std::vector<Peer> tbb_fan_peers(std::size_t count);
std::vector<Peer> tbb_task_group_peers(std::size_t count);

}  // namespace slip::bench
