#include "peers_tbb.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#if defined(SLIP_BENCH_TBB)
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <thread>
#include <type_traits>
#endif

namespace slip::bench {

#if defined(SLIP_BENCH_TBB)
namespace {

namespace flow = oneapi::tbb::flow;

using Lightweight = flow::queueing_lightweight;
using Queueing = flow::queueing;

// Two cache lines apart, because some cores fetch lines in pairs.
constexpr std::size_t kApart = 128;

struct alignas(kApart) Counter {
  std::uint64_t value = 0;
};

void check_count(const char* what, std::uint64_t got, std::uint64_t wanted) {
  if (got == wanted) return;
  throw std::runtime_error(std::string(what) + ": " + std::to_string(got) + " bodies ran, not " +
                           std::to_string(wanted));
}

double per_unit(double nanoseconds, std::size_t count) {
  return nanoseconds / static_cast<double>(std::max<std::size_t>(count, 1));
}

// Bodies are noexcept throughout: oneTBB ignores the lightweight policy for one that could throw.

template <class Policy>
double run_function_node(std::size_t count) {
  flow::graph graph;
  Counter ran;
  flow::function_node<std::size_t, flow::continue_msg, Policy> node(graph, flow::serial,
                                                                    [&ran](std::size_t message) noexcept {
                                                                      do_not_optimize(message);
                                                                      ++ran.value;
                                                                      return flow::continue_msg{};
                                                                    });
  const Timer timer;
  for (std::size_t i = 0; i < count; ++i) node.try_put(i);
  graph.wait_for_all();
  const double elapsed = timer.elapsed_ns();
  check_count("function_node", ran.value, count);
  return per_unit(elapsed, count);
}

template <class Policy>
double run_function_node_gated(std::size_t count, std::size_t depth) {
  constexpr bool kInPlace = std::is_same_v<Policy, Lightweight>;
  flow::graph graph;
  Counter ran;
  std::atomic<bool> entered{false};
  std::atomic<bool> open{false};
  flow::function_node<std::size_t, flow::continue_msg, Policy> node(graph, flow::serial,
                                                                    [&](std::size_t message) noexcept {
                                                                      if (message == 0) {
                                                                        entered.store(true, std::memory_order_release);
                                                                        while (!open.load(std::memory_order_acquire))
                                                                          std::this_thread::yield();
                                                                      }
                                                                      ++ran.value;
                                                                      return flow::continue_msg{};
                                                                    });
  const std::size_t before_open = std::min(std::max<std::size_t>(depth, 1), count);
  std::thread first_put;
  Timer timer;
  if (count > 0 && kInPlace) {
    // The first body waits inside the put of its message, so another thread makes that put. The start of this thread is
    // not part of the measurement.
    first_put = std::thread([&] { node.try_put(0); });
    while (!entered.load(std::memory_order_acquire)) std::this_thread::yield();
    timer.restart();
  } else if (count > 0) {
    node.try_put(0);
  }
  for (std::size_t i = 1; i < before_open; ++i) node.try_put(i);
  open.store(true, std::memory_order_release);
  for (std::size_t i = before_open; i < count; ++i) node.try_put(i);
  // Before the first put returns, the graph may not know of the messages that are queued behind it.
  if (first_put.joinable()) first_put.join();
  graph.wait_for_all();
  const double elapsed = timer.elapsed_ns();
  check_count("gated function_node", ran.value, count);
  return per_unit(elapsed, count);
}

template <class Policy>
TbbChainCost run_continue_chain(std::size_t count) {
  // A lightweight node runs its successors on its own stack, so a long chain would overflow it. A queueing node after
  // every kRecursion nodes ends the recursion.
  constexpr std::size_t kRecursion = 64;
  using LinkNode = flow::continue_node<flow::continue_msg, Policy>;
  using BreakNode = flow::continue_node<flow::continue_msg, Queueing>;
  flow::graph graph;
  Counter ran;
  const auto body = [&ran](const flow::continue_msg&) noexcept {
    ++ran.value;
    return flow::continue_msg{};
  };
  std::deque<LinkNode> links;
  std::deque<BreakNode> breaks;
  flow::receiver<flow::continue_msg>* first = nullptr;
  flow::sender<flow::continue_msg>* last = nullptr;
  const auto append = [&](auto& node) {
    if (last != nullptr) flow::make_edge(*last, node);
    else first = &node;
    last = &node;
  };
  TbbChainCost cost;
  Timer timer;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::is_same_v<Policy, Lightweight> && i % kRecursion == 0) append(breaks.emplace_back(graph, body));
    else append(links.emplace_back(graph, body));
  }
  cost.build = per_unit(timer.elapsed_ns(), count);
  timer.restart();
  if (first != nullptr) first->try_put(flow::continue_msg{});
  graph.wait_for_all();
  cost.run = per_unit(timer.elapsed_ns(), count);
  check_count("chain of continue_nodes", ran.value, count);
  return cost;
}

double run_ping_pong_edges(std::size_t count) {
  flow::graph graph;
  Counter hops;
  // Only one body runs at a time, so both may use the counter. A cycle of edges never ends by itself: the last hop
  // cancels the graph.
  const auto body = [&](std::size_t message) noexcept {
    if (++hops.value == count) graph.cancel();
    return message;
  };
  flow::function_node<std::size_t, std::size_t> ping(graph, flow::serial, body);
  flow::function_node<std::size_t, std::size_t> pong(graph, flow::serial, body);
  flow::make_edge(ping, pong);
  flow::make_edge(pong, ping);
  const Timer timer;
  if (count > 0) ping.try_put(0);
  graph.wait_for_all();
  const double elapsed = timer.elapsed_ns();
  check_count("ping-pong over edges", hops.value, count);
  return per_unit(elapsed, count);
}

template <class Policy>
double run_ping_pong_try_put(std::size_t count) {
  using Node = flow::function_node<std::size_t, flow::continue_msg, Policy>;
  flow::graph graph;
  Counter hops;
  Node* other_of_ping = nullptr;
  Node* other_of_pong = nullptr;
  const auto hop_to = [&hops, count](Node*& other) {
    return [&hops, &other, count](std::size_t message) noexcept {
      if (++hops.value < count) other->try_put(message);
      return flow::continue_msg{};
    };
  };
  Node ping(graph, flow::serial, hop_to(other_of_ping));
  Node pong(graph, flow::serial, hop_to(other_of_pong));
  other_of_ping = &pong;
  other_of_pong = &ping;
  const Timer timer;
  if (count > 0) ping.try_put(0);
  graph.wait_for_all();
  const double elapsed = timer.elapsed_ns();
  check_count("ping-pong by try_put", hops.value, count);
  return per_unit(elapsed, count);
}

// Rounds run one after the other, so each node can have a counter that is not atomic.
using FanCounters = std::array<Counter, kTbbFanWidth>;

void check_fan(const FanCounters& ran, std::size_t fan_count, const Counter& rounds, std::size_t count) {
  for (const Counter& counter : ran) check_count("fan-out", counter.value, fan_count);
  check_count("fan-in", rounds.value, count);
}

template <class Policy>
double run_fan_continue(std::size_t count) {
  flow::graph graph;
  FanCounters ran;
  Counter rounds;
  flow::continue_node<flow::continue_msg> join(graph, [&](const flow::continue_msg&) noexcept {
    if (++rounds.value == count) graph.cancel();
    return flow::continue_msg{};
  });
  std::deque<flow::continue_node<flow::continue_msg, Policy>> fan;
  for (Counter& counter : ran) {
    auto& node = fan.emplace_back(graph, [&counter](const flow::continue_msg&) noexcept {
      ++counter.value;
      return flow::continue_msg{};
    });
    flow::make_edge(node, join);
    flow::make_edge(join, node);
  }
  const Timer timer;
  if (count > 0) {
    for (auto& node : fan) node.try_put(flow::continue_msg{});
  }
  graph.wait_for_all();
  const double elapsed = timer.elapsed_ns();
  // cancel() stops tasks. A lightweight body is no task, so the eight nodes run once more after the last join.
  const bool once_more = std::is_same_v<Policy, Lightweight> && count > 0;
  check_fan(ran, count + (once_more ? 1 : 0), rounds, count);
  return per_unit(elapsed, count);
}

template <class Policy>
double run_fan_atomic(std::size_t count) {
  using Node = flow::function_node<std::size_t, flow::continue_msg, Policy>;
  flow::graph graph;
  FanCounters ran;
  Counter rounds;
  alignas(kApart) std::atomic<std::size_t> missing{kTbbFanWidth};
  flow::broadcast_node<std::size_t> start(graph);
  flow::function_node<std::size_t> join(graph, flow::serial, [&](std::size_t round) noexcept {
    missing.store(kTbbFanWidth, std::memory_order_relaxed);
    if (++rounds.value < count) start.try_put(round + 1);
  });
  std::deque<Node> fan;
  for (Counter& counter : ran) {
    auto& node = fan.emplace_back(graph, flow::unlimited, [&](std::size_t round) noexcept {
      ++counter.value;
      if (missing.fetch_sub(1, std::memory_order_acq_rel) == 1) join.try_put(round);
      return flow::continue_msg{};
    });
    flow::make_edge(start, node);
  }
  const Timer timer;
  if (count > 0) start.try_put(0);
  graph.wait_for_all();
  const double elapsed = timer.elapsed_ns();
  check_fan(ran, count, rounds, count);
  return per_unit(elapsed, count);
}

double run_task_group(std::size_t count, TbbSpawn spawn) {
  const auto threads = static_cast<std::size_t>(oneapi::tbb::this_task_arena::max_concurrency());
  // A counter for each slot of the arena: a shared atomic would cost more than the task it counts.
  std::vector<Counter> ran(threads);
  const auto task = [slots = ran.data()] {
    ++slots[static_cast<std::size_t>(oneapi::tbb::this_task_arena::current_thread_index())].value;
  };
  oneapi::tbb::task_group group;
  const Timer timer;
  if (spawn == TbbSpawn::kOneThread) {
    for (std::size_t i = 0; i < count; ++i) group.run(task);
  } else {
    for (std::size_t t = 0; t < threads; ++t) {
      const std::size_t share = count * (t + 1) / threads - count * t / threads;
      group.run([&group, &task, share] {
        for (std::size_t i = 0; i < share; ++i) group.run(task);
      });
    }
  }
  group.wait();
  const double elapsed = timer.elapsed_ns();
  std::uint64_t total = 0;
  for (const Counter& counter : ran) total += counter.value;
  check_count("task_group", total, count);
  return per_unit(elapsed, count);
}

}  // namespace

std::optional<double> tbb_function_node(std::size_t count, TbbPolicy policy) {
  return policy == TbbPolicy::kLightweight ? run_function_node<Lightweight>(count) : run_function_node<Queueing>(count);
}

std::optional<double> tbb_function_node_gated(std::size_t count, std::size_t depth, TbbPolicy policy) {
  return policy == TbbPolicy::kLightweight ? run_function_node_gated<Lightweight>(count, depth)
                                           : run_function_node_gated<Queueing>(count, depth);
}

std::optional<TbbChainCost> tbb_continue_chain(std::size_t count, TbbPolicy policy) {
  return policy == TbbPolicy::kLightweight ? run_continue_chain<Lightweight>(count)
                                           : run_continue_chain<Queueing>(count);
}

std::optional<double> tbb_ping_pong(std::size_t count, TbbPingPong form) {
  switch (form) {
    case TbbPingPong::kEdges: return run_ping_pong_edges(count);
    case TbbPingPong::kTryPut: return run_ping_pong_try_put<Queueing>(count);
    case TbbPingPong::kTryPutLightweight: return run_ping_pong_try_put<Lightweight>(count);
  }
  return std::nullopt;
}

std::optional<double> tbb_fan(std::size_t count, TbbFan form) {
  switch (form) {
    case TbbFan::kContinueNodes: return run_fan_continue<Queueing>(count);
    case TbbFan::kContinueNodesLightweight: return run_fan_continue<Lightweight>(count);
    case TbbFan::kAtomicJoin: return run_fan_atomic<Queueing>(count);
    case TbbFan::kAtomicJoinLightweight: return run_fan_atomic<Lightweight>(count);
  }
  return std::nullopt;
}

std::optional<double> tbb_task_group(std::size_t count, TbbSpawn spawn) { return run_task_group(count, spawn); }

#else

std::optional<double> tbb_function_node(std::size_t, TbbPolicy) { return std::nullopt; }
std::optional<double> tbb_function_node_gated(std::size_t, std::size_t, TbbPolicy) { return std::nullopt; }
std::optional<TbbChainCost> tbb_continue_chain(std::size_t, TbbPolicy) { return std::nullopt; }
std::optional<double> tbb_ping_pong(std::size_t, TbbPingPong) { return std::nullopt; }
std::optional<double> tbb_fan(std::size_t, TbbFan) { return std::nullopt; }
std::optional<double> tbb_task_group(std::size_t, TbbSpawn) { return std::nullopt; }

#endif

namespace {

// A peer for each form, which measures run(count, form).
template <class Form, class Run>
std::vector<Peer> peers_of(std::size_t count, std::initializer_list<std::pair<const char*, Form>> forms, Run run) {
  std::vector<Peer> peers;
  for (const auto& [name, form] : forms) {
    const auto measure = [count, run, form = form](Context& context) -> std::optional<double> {
      return run(context.iterations(count), form);
    };
    peers.push_back({std::string("tbb_") + name, measure, "built without oneTBB"});
  }
  return peers;
}

constexpr std::initializer_list<std::pair<const char*, TbbPolicy>> kPolicies = {
    {"queueing", TbbPolicy::kQueueing}, {"lightweight", TbbPolicy::kLightweight}};

}  // namespace

std::vector<Peer> tbb_function_node_peers(std::size_t count) { return peers_of(count, kPolicies, tbb_function_node); }

std::vector<Peer> tbb_function_node_gated_peers(std::size_t count, std::size_t depth) {
  return peers_of(count, kPolicies,
                  [depth](std::size_t n, TbbPolicy policy) { return tbb_function_node_gated(n, depth, policy); });
}

std::vector<Peer> tbb_continue_chain_peers(std::size_t count, double (TbbChainCost::*part)() const) {
  return peers_of(count, kPolicies, [part](std::size_t n, TbbPolicy policy) -> std::optional<double> {
    const std::optional<TbbChainCost> cost = tbb_continue_chain(n, policy);
    return cost ? std::optional((*cost.*part)()) : std::nullopt;
  });
}

std::vector<Peer> tbb_ping_pong_peers(std::size_t count) {
  using enum TbbPingPong;
  return peers_of<TbbPingPong>(count, {{"edges", kEdges}, {"try_put", kTryPut}, {"lightweight", kTryPutLightweight}},
                               tbb_ping_pong);
}

std::vector<Peer> tbb_fan_peers(std::size_t count) {
  using enum TbbFan;
  return peers_of<TbbFan>(count,
                          {{"continue", kContinueNodes},
                           {"continue_lightweight", kContinueNodesLightweight},
                           {"atomic", kAtomicJoin},
                           {"atomic_lightweight", kAtomicJoinLightweight}},
                          tbb_fan);
}

std::vector<Peer> tbb_task_group_peers(std::size_t count) {
  using enum TbbSpawn;
  return peers_of<TbbSpawn>(count, {{"one_thread", kOneThread}, {"every_thread", kEveryThread}}, tbb_task_group);
}

}  // namespace slip::bench
