// `slip topo --compare A.xml B.xml`: the predicted times of a collective on several kinds of machines, by number of
// machines, as a table and as a picture.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/collectives/measure.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "cli/topo/topo.hpp"

namespace slip::cli {
namespace {

// In pixels, of one panel.
constexpr double kPanelWidth = 420, kPanelHeight = 300, kPanelLeft = 62, kPanelRight = 16, kPanelTop = 34,
                 kPanelBottom = 40, kPanelLegend = 22;

struct Compared {
  std::string name;
  std::vector<comm::CollectiveModel> models;  // by number of machines
};

// The time of the algorithm that --algorithm names, or of the model's choice.
comm::Estimate estimate_asked(const PredictOptions& options, const Compared& one, std::size_t at, comm::Collective kind,
                              double size) {
  const auto bytes = static_cast<double>(whole_bytes(kind, size, one.models[at].inputs().ranks));
  if (options.algorithms == "all" || options.algorithms == "best") return one.models[at].choice(kind, bytes);
  std::vector<const char*> known;
  for (const comm::GpuAlgorithm algorithm : comm::kGpuAlgorithms) {
    const std::optional<comm::Estimate> found = one.models[at].estimate(algorithm, kind, bytes);
    if (found && options.algorithms == comm::gpu_algorithm_name(algorithm)) return *found;
    if (found) known.push_back(comm::gpu_algorithm_name(algorithm));
  }
  throw UsageError(fmt::format("--algorithm {}: {} copies of {} have {}, best or all", options.algorithms,
                               one.models[at].inputs().machines, one.name, fmt::join(known, ", ")));
}

// The sizes that the picture shows: the first, the middle and the last one.
std::vector<double> shown(const std::vector<double>& sizes) {
  std::vector<double> result{sizes.front()};
  if (sizes.size() > 2) result.push_back(sizes[sizes.size() / 2]);
  if (sizes.size() > 1) result.push_back(sizes.back());
  return result;
}

class ComparisonPicture : Lines {
 public:
  ComparisonPicture(const PredictOptions& options, const std::vector<Compared>& files, const std::vector<int>& nodes,
                    comm::Collective kind)
      : options_(options), files_(files), nodes_(nodes), kind_(kind) {}

  std::string draw(const std::vector<double>& sizes) {
    double left = 0;
    for (const double size : sizes) {
      panel(left, size);
      left += kPanelWidth;
    }
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const double y = kPanelHeight + kPanelLegend * static_cast<double>(i) + 14;
      put(R"(<rect x="{:.0f}" y="{:.0f}" width="18" height="4" fill="{}"/>)", kPanelLeft, y - 5, colour(i));
      put(R"(<text x="{:.0f}" y="{:.0f}" font-size="13">{}</text>)", kPanelLeft + 26, y, html_text(files_[i].name));
    }
    return svg(left, kPanelHeight + kPanelLegend * static_cast<double>(files_.size()) + 10);
  }

 private:
  static const char* colour(std::size_t index) { return kColours[index % std::size(kColours)]; }
  double us(std::size_t file, std::size_t at, double size) const {
    return estimate_asked(options_, files_[file], at, kind_, size).us;
  }
  double x_of(double left, int nodes) const {
    const double low = std::log2(nodes_.front()), high = std::max(std::log2(nodes_.back()), low + 1e-9);
    return left + kPanelLeft + (std::log2(nodes) - low) / (high - low) * (kPanelWidth - kPanelLeft - kPanelRight);
  }

  // Time against machines, both on logarithmic scales.
  void panel(double left, double size) {
    double low = std::numeric_limits<double>::infinity(), high = 0;
    for (std::size_t f = 0; f < files_.size(); ++f) {
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        low = std::min(low, us(f, i, size));
        high = std::max(high, us(f, i, size));
      }
    }
    low *= 0.9;
    high *= 1.1;
    const auto y_of = [&](double value) {
      return kPanelHeight - kPanelBottom -
             std::log(value / low) / std::log(high / low) * (kPanelHeight - kPanelTop - kPanelBottom);
    };
    put(R"(<text x="{:.0f}" y="20" font-size="14" font-weight="bold">{} of {}</text>)", left + kPanelLeft,
        comm::collective_name(kind_), base::format_bytes(static_cast<std::uint64_t>(size)));
    for (const double value : {low / 0.9, std::sqrt(low * high), high / 1.1}) {
      put(R"(<line x1="{:.0f}" x2="{:.0f}" y1="{:.1f}" y2="{:.1f}" stroke="#e2e8f0"/>)", left + kPanelLeft,
          left + kPanelWidth - kPanelRight, y_of(value), y_of(value));
      put(R"(<text x="{:.0f}" y="{:.1f}" font-size="11" text-anchor="end">{:.4g} us</text>)", left + kPanelLeft - 5,
          y_of(value) + 4, value);
    }
    for (const int nodes : nodes_)
      put(R"(<text x="{:.1f}" y="{:.0f}" font-size="11" text-anchor="middle">{}</text>)", x_of(left, nodes),
          kPanelHeight - kPanelBottom + 16, nodes);
    put(R"(<text x="{:.0f}" y="{:.0f}" font-size="11" text-anchor="end">machines</text>)",
        left + kPanelWidth - kPanelRight, kPanelHeight - 8);
    for (std::size_t f = 0; f < files_.size(); ++f) {
      std::string points;
      for (std::size_t i = 0; i < nodes_.size(); ++i)
        points += fmt::format("{:.1f},{:.1f} ", x_of(left, nodes_[i]), y_of(us(f, i, size)));
      put(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>)", points, colour(f));
    }
  }

  const PredictOptions& options_;
  const std::vector<Compared>& files_;
  const std::vector<int>& nodes_;
  const comm::Collective kind_;
};

}  // namespace

void print_comparison(const PredictOptions& options, const MachineOptions& machines, const std::vector<int>& nodes,
                      const std::string& svg) {
  const comm::Collective kind = kind_asked(options);
  const std::vector<double> sizes = sizes_asked(options);
  std::vector<Compared> files;
  for (const std::string& file : machines.files) {
    MachineOptions one = machines;
    one.files = {file};
    one.compared = true;
    const std::vector<TopoSystem> kinds = machines_asked(one);
    if (std::ranges::any_of(kinds, [&](const TopoSystem& kind_of) { return simulates(options, kind_of); }))
      throw UsageError(fmt::format(
          "--compare {}: it has a machine without GPUs, and the model is of GPUs; --file simulates it", file));
    Compared& compared = files.emplace_back(Compared{file, {}});
    for (const int count : nodes) {
      const topo::FoldedCluster cluster = cluster_asked(one, kinds, count, topo::kMaxCopies);
      if (cluster.ranks < 2) throw UsageError(fmt::format("--compare {}: there is one rank only", file));
      compared.models.emplace_back(
          inputs_asked(options, cluster, plan_channels(cluster.cluster, limits_asked(options), {})));
      estimate_asked(options, compared, compared.models.size() - 1, kind, sizes.front());  // throws before it prints
    }
  }
  const bool chosen = options.algorithms == "all" || options.algorithms == "best";
  fmt::print("\n{}, {} for each; * is the fastest\n", comm::collective_name(kind),
             chosen ? "the choice of the model" : options.algorithms);
  for (std::size_t i = 0; i < files.size(); ++i)
    fmt::print("  {}: {}, {} GPUs in each copy\n", static_cast<char>('A' + i), files[i].name,
               files[i].models.front().inputs().ranks / nodes.front());
  std::string head = fmt::format("{:>8} {:>12}", "machines", "size (B)");
  for (std::size_t i = 0; i < files.size(); ++i) head += fmt::format("  {:>12} {:<16}", static_cast<char>('A' + i), "");
  fmt::print("{}\n", head);
  Json rows = Json::array();
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (const double size : sizes) {
      std::vector<comm::Estimate> found;
      for (const Compared& one : files) found.push_back(estimate_asked(options, one, n, kind, size));
      const auto best = std::ranges::min_element(found, {}, &comm::Estimate::us) - found.begin();
      std::string line = fmt::format("{:>8} {:>12.0f}", nodes[n], size);
      for (std::size_t i = 0; i < files.size(); ++i) {
        const comm::Estimate& one = found[i];
        const std::string how =
            fmt::format("{} {}", comm::gpu_algorithm_name(one.algorithm), comm::protocol_name(one.protocol));
        line += fmt::format("  {:>9.1f} us{} {:<16}", one.us, static_cast<std::size_t>(best) == i ? '*' : ' ', how);
        rows.push_back({{"file", files[i].name},
                        {"machines", nodes[n]},
                        {"ranks", files[i].models[n].inputs().ranks},
                        {"bytes", whole_bytes(kind, size, files[i].models[n].inputs().ranks)},
                        {"algorithm", comm::gpu_algorithm_name(one.algorithm)},
                        {"protocol", comm::protocol_name(one.protocol)},
                        {"time_us", one.us}});
      }
      fmt::print("{}\n", line);
    }
  }
  write_json(options.json, rows);
  if (svg.empty()) return;
  write_file(svg, ComparisonPicture(options, files, nodes, kind).draw(shown(sizes)));
  fmt::print("picture: {}\n", svg);
}

}  // namespace slip::cli
