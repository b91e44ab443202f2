// A way's latency and rate, fitted to the times of pieces of a few sizes.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "flow/costs/stopwatch.hpp"
#include "slip/costs.hpp"

namespace slip {
namespace {

constexpr double kPicosPerSecond = 1e12;

struct Timed {
  double bytes, time;
};

// The line time = latency + bytes x slope whose relative errors are least: else the largest piece alone would decide.
LinkCost fit(const std::vector<Timed>& pieces) {
  double weights = 0, bytes = 0, times = 0, squares = 0, products = 0;
  for (const Timed& piece : pieces) {
    const double weight = 1 / (piece.time * piece.time);
    weights += weight;
    bytes += weight * piece.bytes;
    times += weight * piece.time;
    squares += weight * piece.bytes * piece.bytes;
    products += weight * piece.bytes * piece.time;
  }
  const double spread = weights * squares - bytes * bytes;
  double slope = spread > 0 ? (weights * products - bytes * times) / spread : 0;
  double latency = (times - slope * bytes) / weights;
  if (slope <= 0 || latency < 0) {  // noise, or a single size
    const Timed& largest = *std::max_element(pieces.begin(), pieces.end(),
                                             [](const Timed& a, const Timed& b) { return a.bytes < b.bytes; });
    slope = largest.time / largest.bytes;
    latency = 0;
  }
  return {kPicosPerSecond / slope, static_cast<Picos>(latency + 0.5)};
}

}  // namespace

LinkCost measure_link(const Device& device, const std::function<void(StreamRef, std::uint64_t bytes)>& issue,
                      std::uint64_t piece_bytes, std::uint64_t unit_bytes, Here here) {
  if (unit_bytes == 0 || piece_bytes < unit_bytes || !issue)
    throw Error(Code::kInvalidValue,
                fmt::format("measure_link: pieces of {} bytes in units of {}{}; give at least one unit and how it is "
                            "moved",
                            piece_bytes, unit_bytes, issue ? "" : " and no function"),
                here);
  Stopwatch watch(device);
  std::vector<Timed> pieces;
  for (const std::uint64_t parts : {1, 4, 16, 1024}) {  // the last for the latency, which large ones do not show
    const std::uint64_t bytes = piece_bytes / parts / unit_bytes * unit_bytes;
    if (bytes == 0) break;
    const Picos time = watch.time([&](StreamRef stream, int) { issue(stream, bytes); });
    pieces.push_back({static_cast<double>(bytes), static_cast<double>(time)});
  }
  return fit(pieces);
}

}  // namespace slip
