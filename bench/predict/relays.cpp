// all_to_all directly and through relays (PXN), on machines with rails: the sign of the difference against a
// calculation by hand (docs/topology.md shows it).
#include <fmt/format.h>

#include <algorithm>

#include "bars.hpp"
#include "store/topology_file.hpp"

namespace slip::bench {
namespace {

constexpr int kEach = 8;               // ranks of a machine, each with a NIC on its rail
constexpr double kNetGbps = 48;        // PCIe 5 limits a NIC of 400 Gb/s
constexpr double kCrossGbps = 22;      // between the two CPUs, which rails are reached through
constexpr double kNvlinkGbps = 370.8;  // of a GPU
constexpr double kMessageUs = 1, kShare = 0.92;

// By hand, in microseconds, without what both have in common. `block`: bytes from each rank to each other.
struct ByHand {
  double direct = 0, relay = 0;
};
ByHand by_hand(int machines, double block) {
  const double far = kEach * (machines - 1);
  const double us = block / 1e3 / kShare;  // of a block at 1 GB/s
  // Directly: half of a machine's messages leave through a NIC below the other CPU: 4 ranks x half of `far`.
  const double crossing = 4 * far / 2 * us / kCrossGbps;
  const double out = far * us / kNetGbps;  // each NIC sends `far` blocks in both cases
  ByHand result;
  result.direct = std::max({crossing, out, far * kMessageUs});
  // Through relays: first 7 of 8 blocks go to the relay over NVLink, then the NIC sends one message for 8 blocks.
  result.relay = far * 7 / 8 * us / kNvlinkGbps + std::max(out, far / kEach * kMessageUs);
  return result;
}

// The share of cases in which the model prefers what the calculation prefers.
std::optional<double> agreement(Context& context) {
  int right = 0, all = 0;
  const std::string file = SLIP_SOURCE_DIR "/bench/predict/machines/h100x8_8x400g.xml";
  for (int machines = 2; machines <= 16; machines *= 2) {
    const topo::FoldedCluster cluster = topo::folded(store::read_topologies(file, {}), machines);
    const comm::CollectiveModel model(
        comm::model_inputs(cluster, plan_channels(cluster.cluster), comm::NetReach::kSameNumber));
    for (double bytes = 64 << 10; bytes <= 256 << 20; bytes *= 4) {
      const auto us = [&](comm::GpuAlgorithm algorithm) {
        return model.estimate(algorithm, comm::Collective::kAllToAll, bytes)->us;
      };
      const double direct = us(comm::GpuAlgorithm::kDirect), relay = us(comm::GpuAlgorithm::kRelay);
      const ByHand expected = by_hand(machines, bytes / (kEach * machines));
      ++all;
      right += (direct > relay) == (expected.direct > expected.relay) ? 1 : 0;
      context.note(fmt::format("{} machines, {:.0f} KiB: direct {:.1f} us, relay {:.1f} us; by hand {:.1f} us apart",
                               machines, bytes / 1024, direct, relay, expected.direct - expected.relay));
    }
  }
  return 100.0 * right / all;
}

}  // namespace

void add_relay_bars(Harness& harness) {
  harness.add({.area = "predict",
               .name = "relay_against_direct_right_sign",
               .unit = Unit::kPercent,
               .better = Better::kHigher,
               .ours = agreement,
               .limit = 100,
               .max_repeat = 1});
}

}  // namespace slip::bench
