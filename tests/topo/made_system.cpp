#include "topo/made_system.hpp"

#include <fmt/format.h>

#include <random>
#include <vector>

namespace slip::topo_test {

std::string data_path(const std::string& name) { return SLIP_SOURCE_DIR "/tests/topo/data/" + name; }
TopoSystem data_system(const std::string& name) { return read_topology(data_path(name)); }

std::string random_xml(std::uint64_t seed, const RandomShape& shape) {
  std::mt19937_64 random(seed);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<std::uint64_t>(limit)); };
  const int cpus = 1 + below(2), gpus = 1 + below(shape.max_gpus);
  const int nets = shape.max_nets > 0 ? 1 + below(shape.max_nets) : 0;
  const int style = below(3);  // NVLinks: none, between some, switch
  std::vector<std::vector<int>> nvlinks(static_cast<std::size_t>(gpus),
                                        std::vector<int>(static_cast<std::size_t>(gpus)));
  for (std::size_t a = 0; a < nvlinks.size(); ++a) {
    for (std::size_t b = a + 1; b < nvlinks.size() && style == 1; ++b) nvlinks[a][b] = nvlinks[b][a] = below(3);
  }
  const auto bus = [](int gpu) { return fmt::format("0000:a{:x}:00.0", gpu); };
  const auto link = [&] {
    return fmt::format(R"(link_speed="{} GT/s" link_width="{}")", 8 << below(2), 8 << below(2));
  };
  // A slot is a CPU or a switch below it.
  const int slots = cpus * (1 + below(2));
  std::vector<std::string> slot(static_cast<std::size_t>(slots));
  for (int gpu = 0; gpu < gpus; ++gpu) {
    std::string inner;
    for (int peer = 0; peer < gpus && style == 1; ++peer) {
      const int count = nvlinks[static_cast<std::size_t>(gpu)][static_cast<std::size_t>(peer)];
      if (count > 0) inner += fmt::format(R"(<nvlink target="{}" count="{}" tclass="0x030200"/>)", bus(peer), count);
    }
    if (style == 2) inner += R"(<nvlink target="0000:c0:00.0" count="6" tclass="0x068000"/>)";
    slot[static_cast<std::size_t>(below(slots))] +=
        fmt::format("<pci busid=\"{}\" class=\"0x030200\" {}><gpu dev=\"{}\" sm=\"80\">{}</gpu></pci>\n", bus(gpu),
                    link(), gpu, inner);
  }
  for (int net = 0; net < nets; ++net)
    slot[static_cast<std::size_t>(below(slots))] += fmt::format(
        "<pci busid=\"0000:b{}:00.0\" class=\"0x020000\" {}><nic><net name=\"n{}\" dev=\"{}\" "
        "speed=\"{}\"/></nic></pci>\n",
        net, link(), net, net, 50'000 * (1 + below(4)));
  std::string xml = "<system version=\"1\">\n";
  for (int cpu = 0; cpu < cpus; ++cpu) {
    xml += fmt::format("<cpu numaid=\"{}\" arch=\"x86_64\" vendor=\"AuthenticAMD\">\n", cpu);
    for (int s = cpu; s < slots; s += cpus) {
      const std::string& inner = slot[static_cast<std::size_t>(s)];
      const bool direct = s < cpus || inner.empty();
      xml += direct ? inner
                    : fmt::format("<pci busid=\"0000:d{}:00.0\" class=\"0x060400\" {}>\n{}</pci>\n", s, link(), inner);
    }
    xml += "</cpu>\n";
  }
  return xml + "</system>\n";
}

}  // namespace slip::topo_test
