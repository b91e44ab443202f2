// The picture of `slip topo --svg`: CPUs at the top, devices below, then NVLinks and rings. For several machines it
// also shows the two trees between them. Line widths are proportional to rates.
#include <algorithm>
#include <cmath>
#include <set>

#include "cli/text.hpp"
#include "cli/topo/topo.hpp"
#include "topo/fabric.hpp"
#include "topo/trees.hpp"

namespace slip::cli {
namespace {

// In pixels. kLeaf: horizontal distance of leaves. kBox, kTall: width and height of a box. kLevel: vertical distance of
// the levels of the tree. kTreeTop: y of the first level.
constexpr double kLeaf = 92, kBox = 78, kTall = 38, kLevel = 92, kMargin = 36, kTreeTop = 134;
constexpr std::size_t kShownRings = 6, kShownMachines = 32;

struct Style {
  const char *fill, *line, *text;
};

Style style_of(TopoKind kind) {
  switch (kind) {
    case TopoKind::kCpu: return {"#1e293b", "#1e293b", "#ffffff"};
    case TopoKind::kPci:
    case TopoKind::kCache: return {"#f1f5f9", "#94a3b8", "#334155"};
    case TopoKind::kGpu: return {"#dcfce7", "#16a34a", "#14532d"};
    case TopoKind::kCore: return {"#e0f2fe", "#0284c7", "#0c4a6e"};
    case TopoKind::kNvSwitch: return {"#16a34a", "#15803d", "#ffffff"};
    default: return {"#fef3c7", "#d97706", "#78350f"};
  }
}

double thickness(double gbps) { return std::clamp(std::sqrt(gbps) * 0.62, 1.0, 11.0); }

class Picture : Lines {
 public:
  Picture(const Cluster& cluster, const ChannelPlan& plan)
      : cluster_(cluster), plan_(plan), system_(cluster.nodes.front()), positions_(system_.nodes.size()) {}

  std::string draw() {
    lay_out();
    links();
    nvlinks();
    boxes();
    rings();
    trees();
    legend();
    return svg(width_, bottom_ + kMargin);
  }

 private:
  struct Position {
    double x = 0, y = 0;
    bool shown = false;
  };

  Position& position(int id) { return positions_[static_cast<std::size_t>(id)]; }
  const TopoNode& node(int id) const { return topo::node_at(system_, id); }
  static bool is_leaf(TopoKind kind) {
    return kind == TopoKind::kGpu || kind == TopoKind::kCore || kind == TopoKind::kNic;
  }

  // Leaves are placed side by side in one row, and each parent above the middle of its children.
  void lay_out() {
    below_.resize(system_.nodes.size());
    for (std::size_t i = 0; i < system_.nodes.size(); ++i) {
      const TopoNode& each = system_.nodes[i];
      if (each.parent >= 0 && each.kind != TopoKind::kNet)
        below_[static_cast<std::size_t>(each.parent)].push_back(static_cast<int>(i));
    }
    double next = kMargin;
    for (std::size_t i = 0; i < system_.nodes.size(); ++i) {
      if (system_.nodes[i].kind != TopoKind::kCpu) continue;
      put_node(static_cast<int>(i), 0, next);
      next += 26;
    }
    for (std::size_t i = 0; i < system_.nodes.size(); ++i) {
      if (is_leaf(system_.nodes[i].kind)) positions_[i].y = kTreeTop + deepest_ * kLevel;
    }
    width_ = std::max(next - 26 + kMargin, 680.0);
    leaves_ = kTreeTop + deepest_ * kLevel;
    bottom_ = leaves_ + kTall / 2;
  }

  void put_node(int id, int depth, double& next) {
    const double from = next;
    position(id).shown = true;
    deepest_ = std::max(deepest_, depth);
    for (const int child : below_[static_cast<std::size_t>(id)]) put_node(child, depth + 1, next);
    if (below_[static_cast<std::size_t>(id)].empty()) next += kLeaf;
    position(id).x = (from + next) / 2;
    position(id).y = kTreeTop + depth * kLevel;
  }

  // Links i and i + 1 are the two directions of one link, so only every second one is drawn.
  void links() {
    for (std::size_t i = 0; i < system_.links.size(); i += 2) {
      const TopoLink& link = system_.links[i];
      if (link.kind == LinkKind::kNvLink || link.kind == LinkKind::kNet) continue;
      const Position &a = position(link.from), &b = position(link.to);
      if (link.kind == LinkKind::kSys) {
        const double rise = std::min(14 + std::abs(a.x - b.x) * 0.03, 38.0);
        put("<path d=\"M{:.1f} {:.1f} Q{:.1f} {:.1f} {:.1f} {:.1f}\" fill=\"none\" stroke=\"#94a3b8\" "
            "stroke-width=\"{:.1f}\"/>",
            a.x, a.y - kTall / 2, (a.x + b.x) / 2, a.y - kTall / 2 - 2 * rise, b.x, b.y - kTall / 2,
            thickness(link.gbps));
        continue;
      }
      const double middle = (a.y + b.y) / 2;
      put("<path d=\"M{0:.1f} {1:.1f} C{0:.1f} {4:.1f} {2:.1f} {4:.1f} {2:.1f} {3:.1f}\" fill=\"none\" "
          "stroke=\"#cbd5e1\" "
          "stroke-width=\"{5:.1f}\"><title>{6}</title></path>",
          a.x, a.y, b.x, b.y, middle, thickness(std::min(link.gbps, 300.0)), gbps_text(link.gbps));
    }
  }

  void nvlinks() {
    int hub = -1;
    for (std::size_t i = 0; i < system_.links.size(); i += 2) {
      const TopoLink& link = system_.links[i];
      if (link.kind != LinkKind::kNvLink) continue;
      const Position &a = position(link.from), &b = position(link.to);
      const double edge = leaves_ + kTall / 2;
      if (node(link.to).kind == TopoKind::kNvSwitch) {
        hub = link.to;
        put("<path d=\"M{0:.1f} {1:.1f} V{2:.1f}\" stroke=\"#86efac\" stroke-width=\"{3:.1f}\"/>", a.x, edge, edge + 46,
            thickness(link.gbps));
        bottom_ = std::max(bottom_, edge + 46);
        continue;
      }
      const double sag = 20 + std::abs(a.x - b.x) * 0.16;
      put("<path d=\"M{0:.1f} {1:.1f} C{0:.1f} {3:.1f} {2:.1f} {3:.1f} {2:.1f} {1:.1f}\" fill=\"none\" "
          "stroke=\"#86efac\" "
          "stroke-width=\"{4:.1f}\"><title>NVLink {5}</title></path>",
          a.x, edge, b.x, edge + sag, thickness(link.gbps), gbps_text(link.gbps));
      bottom_ = std::max(bottom_, edge + sag * 0.75 + 6);
    }
    if (hub < 0) return;
    const Style style = style_of(TopoKind::kNvSwitch);
    put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"26\" rx=\"6\" fill=\"{}\"/>", kMargin, bottom_,
        width_ - 2 * kMargin, style.fill);
    put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"13\" text-anchor=\"middle\" fill=\"{}\">NVSwitch</text>",
        width_ / 2, bottom_ + 18, style.text);
    bottom_ += 26;
  }

  void boxes() {
    for (std::size_t i = 0; i < system_.nodes.size(); ++i) {
      if (!positions_[i].shown) continue;
      const TopoNode& each = system_.nodes[i];
      const Style style = style_of(each.kind);
      const double x = positions_[i].x, y = positions_[i].y;
      put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"7\" fill=\"{}\" stroke=\"{}\" "
          "stroke-width=\"1.5\"/>",
          x - kBox / 2, y - kTall / 2, kBox, kTall, style.fill, style.line);
      const std::string name = short_name(static_cast<int>(i)), facts = facts_of(static_cast<int>(i));
      put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"12\" font-weight=\"600\" text-anchor=\"middle\" "
          "fill=\"{}\">{}</text>",
          x, facts.empty() ? y + 5 : y - 2, style.text, html_text(name));
      if (!facts.empty())
        put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10.5\" text-anchor=\"middle\" fill=\"{}\">{}</text>", x,
            y + 12, style.text, html_text(facts));
    }
  }

  std::string short_name(int id) const {
    switch (node(id).kind) {
      case TopoKind::kPci: return "PCI switch";
      case TopoKind::kNic: {
        const int net = net_of(id);
        if (net < 0) return "NIC";
        const std::string& name = node(net).name;  // "net mlx5_0" is shown as "mlx5_0", "net 0" as it is
        const bool bare = name.find_first_not_of("0123456789", 4) == std::string::npos;
        return (bare ? name : name.substr(4)).substr(0, 10);
      }
      default: return node(id).name;
    }
  }

  int net_of(int nic) const {
    for (const int net : system_.nets) {
      if (node(net).parent == nic) return net;
    }
    return -1;
  }

  // The rate shown in a node. For a NIC that has a net it is the rate of the net, otherwise that of the link to the
  // node's parent. Empty: the node has no such link, or the rate is 1000 GB/s or more.
  std::string facts_of(int id) const {
    const int net = node(id).kind == TopoKind::kNic ? net_of(id) : -1;
    const double gbps = topo::link_gbps(system_, id, net >= 0 ? net : node(id).parent);
    return gbps > 0 && gbps < 1000 ? gbps_text(gbps) : std::string();
  }

  // Each ring has its own line below the devices.
  void rings() {
    std::set<std::vector<int>> drawn;
    heading("Rings", bottom_ + 36);
    double y = bottom_ + 66;
    const auto here =
        static_cast<std::size_t>(std::ranges::count_if(cluster_.ranks, [](const RankPlace& p) { return p.node == 0; }));
    for (const CommChannel& channel : plan_.channels) {
      if (drawn.size() >= kShownRings) break;
      // The ranks of the ring on the first machine. If the ring spans machines, the first member is the net through
      // which it enters, as -1 - net (see x_of()), and the last member the one through which it leaves, if that is
      // another.
      std::vector<int> part;
      if (!channel.nets.empty()) part.push_back(-1 - channel.nets.front());
      for (std::size_t i = 0; i < here; ++i) part.push_back(channel.ring[i]);
      if (channel.nets != channel.nets_out) part.push_back(-1 - channel.nets_out.front());
      if (part.size() < 2 || !drawn.insert(part).second) continue;
      lane(part, y, kColours[(drawn.size() - 1) % std::size(kColours)]);
      y += 34;
    }
    bottom_ = y - 16;
  }

  void heading(const std::string& text, double y) {
    put("<text x=\"{}\" y=\"{:.1f}\" font-size=\"14\" font-weight=\"600\" fill=\"#334155\">{}</text>", kMargin, y,
        text);
  }

  // `member`: a rank, or -1 - net.
  double x_of(int member) {
    if (member >= 0)
      return position(
                 system_.devices[static_cast<std::size_t>(cluster_.ranks[static_cast<std::size_t>(member)].device)])
          .x;
    return position(node(system_.nets[static_cast<std::size_t>(-1 - member)]).parent).x;
  }

  void lane(const std::vector<int>& part, double y, const char* colour) {
    for (std::size_t i = 0; i < part.size(); ++i) {
      const double a = x_of(part[i]), b = x_of(part[(i + 1) % part.size()]);
      const double sag = (a < b ? -1 : 1) * std::min(6 + std::abs(a - b) * 0.03, 15.0);
      put("<path d=\"M{:.1f} {:.1f} Q{:.1f} {:.1f} {:.1f} {:.1f}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>", a,
          y, (a + b) / 2, y + 2 * sag, b, y, colour);
      const double tip = (a + b) / 2, way = a < b ? 5 : -5;
      put("<path d=\"M{:.1f} {:.1f} l{:.1f} -4 v8 z\" fill=\"{}\"/>", tip + way, y + sag, -2 * way, colour);
    }
    for (const int member : part)
      put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"{}\" stroke=\"{}\" stroke-width=\"2\"/>", x_of(member),
          y, member < 0 ? "#fef3c7" : "#ffffff", colour);
  }

  // Machines in a row, one tree above it and the other below.
  void trees() {
    const std::size_t machines = std::min(cluster_.nodes.size(), kShownMachines);
    if (machines < 2) return;
    const auto both = topo::double_binary_parents(static_cast<int>(machines));
    const int levels = topo::depth_of(topo::tree_of(both[0])) + 1;
    const double step = (width_ - 2 * kMargin) / static_cast<double>(machines), row = bottom_ + 56 + levels * 30;
    heading(fmt::format("The two trees between {} machines", machines), bottom_ + 36);
    for (std::size_t t = 0; t < 2; ++t) {
      const double way = t == 0 ? -1 : 1;
      const auto at = [&](std::size_t i) {
        return std::pair(kMargin + step * (static_cast<double>(i) + 0.5),
                         row + way * (levels - topo::depth_of(both[t], i)) * 30);
      };
      for (std::size_t i = 0; i < machines; ++i) {
        const auto [x, y] = at(i);
        put("<path d=\"M{:.1f} {:.1f} V{:.1f}\" stroke=\"#e2e8f0\" stroke-width=\"1\"/>", x, row, y);
        if (both[t][i] < 0) continue;
        const auto [up_x, up_y] = at(static_cast<std::size_t>(both[t][i]));
        put("<path d=\"M{:.1f} {:.1f} L{:.1f} {:.1f}\" stroke=\"{}\" stroke-width=\"2\"/>", x, y, up_x, up_y,
            kColours[t]);
      }
      for (std::size_t i = 0; i < machines; ++i)
        put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"#ffffff\" stroke=\"{}\" stroke-width=\"2\"/>",
            at(i).first, at(i).second, kColours[t]);
    }
    for (std::size_t i = 0; i < machines; ++i) {
      const double x = kMargin + step * (static_cast<double>(i) + 0.5);
      put("<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"10\" fill=\"#1e293b\"/><text x=\"{0:.1f}\" y=\"{2:.1f}\" "
          "font-size=\"10\" "
          "text-anchor=\"middle\" fill=\"#ffffff\">{3}</text>",
          x, row, row + 3.5, i);
    }
    bottom_ = row + levels * 30;
  }

  void legend() {
    put("<text x=\"{}\" y=\"34\" font-size=\"18\" font-weight=\"700\" fill=\"#0f172a\">{}</text>", kMargin,
        html_text(system_.name.substr(system_.name.rfind('/') + 1)));
    const std::string several = cluster_.nodes.size() > 1 ? fmt::format("{} machines, ", cluster_.nodes.size()) : "";
    put("<text x=\"{}\" y=\"54\" font-size=\"13\" fill=\"#475569\">{}{}, {}: rings {}, trees {}</text>", kMargin,
        several, counted(cluster_.ranks.size(), "rank"), counted(plan_.channels.size(), "channel"),
        gbps_text(plan_.ring_gbps), gbps_text(plan_.tree_gbps));
  }

  const Cluster& cluster_;
  const ChannelPlan& plan_;
  const TopoSystem& system_;
  std::vector<Position> positions_;
  std::vector<std::vector<int>> below_;
  double width_ = 0, leaves_ = 0, bottom_ = 0;
  int deepest_ = 1;
};

}  // namespace

std::string draw_svg(const Cluster& cluster, const ChannelPlan& plan) { return Picture(cluster, plan).draw(); }

}  // namespace slip::cli
