// What the interface of NCCL's network plug-ins costs: the TCP transport used directly, compared with the same
// transport used through Slipstream's loader of plug-ins and libnccl-net-slip.so. Both are measured alternately, in
// short blocks, and the bar is the difference per message.
#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "bars.hpp"
#include "base/clock.hpp"
#include "transport/net/net.hpp"
#include "transport/net/net_choice.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kBlocks = 401;   // of each kind, in turn
constexpr std::size_t kMessages = 50;  // of a block: shorter than a time slice, so that most blocks are not interrupted
constexpr double kMaxCostNs = 300;

transport::Deadline long_deadline() { return {base::deadline_after(60'000'000'000), nullptr}; }

// Connections in both directions between two ends.
class Pair {
 public:
  Pair(const transport::Net& net, std::size_t bytes) : bytes_(bytes) {
    transport::NetOptions options;
    options.host = "127.0.0.1";
    for (std::size_t i = 0; i < 2; ++i) {
      const auto listener = net.listen(options);
      senders_[i] = net.connect(listener->handle(), options, long_deadline());
      receivers_[1 - i] = listener->accept(long_deadline());
    }
    for (std::size_t i = 0; i < 2; ++i) {
      memory_[i].resize(bytes);
      out_[i] = senders_[i]->register_memory(memory_[i]);
      in_[i] = receivers_[i]->register_memory(memory_[i]);
    }
    message(0);
    message(1);
  }

  // One thread drives both ends until the message has arrived, and the send is done.
  void message(std::size_t from) {
    transport::NetRequest* receive = post_receive(1 - from);
    transport::NetRequest* send = post_send(from);
    while (receive || send) {
      if (send && senders_[from]->test(send)) send = nullptr;
      if (receive && receivers_[1 - from]->test(receive)) receive = nullptr;
    }
  }

 private:
  transport::NetRequest* post_send(std::size_t end) {
    return senders_[end]->isend({memory_[end].data(), bytes_, 0, out_[end].get()});
  }
  transport::NetRequest* post_receive(std::size_t end) {
    const transport::NetPart part{memory_[end].data(), bytes_, 0, in_[end].get()};
    return receivers_[end]->irecv(std::span(&part, 1));
  }

  const std::size_t bytes_;
  std::array<std::vector<std::byte>, 2> memory_;
  std::array<std::unique_ptr<transport::NetSender>, 2> senders_;
  std::array<std::unique_ptr<transport::NetReceiver>, 2> receivers_;
  std::array<std::unique_ptr<transport::NetMemory>, 2> out_, in_;
};

// Nanoseconds per message of a block in which one thread drives both ends.
double one_thread_ns(Pair& pair) {
  const Timer timer;
  for (std::size_t i = 0; i < kMessages; ++i) pair.message(0);
  return timer.elapsed_ns() / static_cast<double>(kMessages);
}

// How much longer a message takes through the plug-in: the difference of the medians of both kinds of blocks.
Measure plugin_cost(std::size_t bytes) {
  return [=](Context& context) -> std::optional<double> {
    const transport::Net& plugin = *transport::net_plugin(SLIP_OWN_PLUGIN).net;
    Pair direct(transport::net_tcp(), bytes), through(plugin, bytes);
    std::vector<double> direct_ns, through_ns;
    for (std::size_t i = 0; i < context.iterations(kBlocks); ++i) {
      direct_ns.push_back(one_thread_ns(direct));
      through_ns.push_back(one_thread_ns(through));
    }
    return median(through_ns) - median(direct_ns);
  };
}

Bar bar(std::string name, std::size_t bytes) {
  return {.area = "networks",
          .name = std::move(name),
          .unit = Unit::kNanoseconds,
          .ours = plugin_cost(bytes),
          .limit = kMaxCostNs};
}

}  // namespace

void add_plugin_bars(Harness& harness) {
  harness.add(bar("plugin_cost_8B", 8));
  harness.add(bar("plugin_cost_8KiB", 8192));
}

}  // namespace slip::bench
