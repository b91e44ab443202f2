// Damaged and hostile topology files. Each is either refused with kParse or read. A topology that was read is the same
// when it is written and read again, and a plan on it uses every rank once.
//
// usage: fuzz_topologies SECONDS SEED
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "fuzz/fuzz_loop.hpp"
#include "slip/topology.hpp"
#include "topo/document.hpp"

namespace slip {
namespace {

std::string text_of(const std::string& name) {
  std::ifstream file(SLIP_SOURCE_DIR "/tests/topo/data/" + name);
  std::stringstream text;
  text << file.rdbuf();
  if (text.str().empty()) throw std::logic_error("cannot read " + name);
  return text.str();
}

const std::vector<std::string> kValues = {"",
                                          "0",
                                          "-1",
                                          "1",
                                          "99999999999999999999",
                                          "1e308",
                                          "nan",
                                          "0x",
                                          "-0",
                                          "0x7fffffffffffffff",
                                          "&#0;",
                                          "&amp;",
                                          "0000:11:00.0",
                                          "0000:12:00.0",
                                          "<",
                                          "\xFF",
                                          "8 GT/s",
                                          "32 GT/s PCIe/s",
                                          "0x1000",
                                          "0xc010",
                                          "gfx942",
                                          "512 GT/s",
                                          "0.0001 GT/s",
                                          "0x068000",
                                          "0x030200",
                                          "0x020000"};
const std::vector<std::string> kPieces = {"<pci busid=\"0000:77:00.0\" class=\"0x060400\">",
                                          "</pci>",
                                          "<gpu dev=\"0\" sm=\"80\"/>",
                                          "<nvlink target=\"0000:11:00.0\" count=\"3\" tclass=\"0x030200\"/>",
                                          "<nic><net dev=\"7\"/></nic>",
                                          "<core dev=\"5\"/>",
                                          "<cpu numaid=\"7\"/>",
                                          "<cache>",
                                          "<!-- ",
                                          "-->",
                                          "<?x ",
                                          "<xgmi target=\"0000:12:00.0\" count=\"1\" tclass=\"0x120000\"/>",
                                          "<c2c bw=\"44712\" count=\"10\"/>",
                                          "<cpu numaid=\"0\" host_hash=\"0x2\"><core dev=\"0\"/></cpu>",
                                          "<pci busid=\"0000:78:00.0\" vendor=\"0x1000\" device=\"0xc010\">",
                                          "<a b='c'/>"};

class Xml {
 public:
  Xml(std::uint64_t seed, const std::vector<std::string>& originals) : random_(seed), originals_(originals) {}

  std::string make() {
    if (below(50) == 0) return deep();
    std::string text = originals_[below(originals_.size())];
    for (std::size_t changes = below(5); changes > 0; --changes) change(text);
    if (below(12) == 0) text.resize(below(text.size() + 1));
    return text;
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  const std::string& one_of(const std::vector<std::string>& list) { return list[below(list.size())]; }

  std::string deep() {
    std::string text = "<system><cpu numaid=\"0\">";
    const std::string& piece = one_of(kPieces);
    for (std::size_t i = below(5000); i > 0; --i) text += piece;
    return text;
  }

  void change(std::string& text) {
    if (text.empty()) text = "<";
    const std::size_t at = below(text.size()), length = std::min(below(60), text.size() - at);
    switch (below(8)) {
      case 0: text[at] = static_cast<char>(random_()); break;
      case 1: text[at] = "<>/=\"' &;\n"[below(10)]; break;
      case 2: text.erase(at, length); break;
      case 3: text.insert(at, text.substr(below(text.size()), length)); break;
      case 4: text.insert(at, one_of(kPieces)); break;
      case 5: move_line(text, at); break;
      default: replace_value(text, at);
    }
  }

  void replace_value(std::string& text, std::size_t at) {
    const std::size_t from = text.find("=\"", at);
    const std::size_t end = from == std::string::npos ? from : text.find('"', from + 2);
    if (end == std::string::npos) return;
    text.replace(from + 2, end - from - 2, below(2) ? one_of(kValues) : std::to_string(below(20)));
  }

  void move_line(std::string& text, std::size_t at) {
    const std::size_t from = text.find('\n', at), end = from == std::string::npos ? from : text.find('\n', from + 1);
    if (end == std::string::npos) return;
    const std::string line = text.substr(from, end - from);
    if (below(2)) text.erase(from, end - from);
    text.insert(std::min(text.find('\n', below(text.size())), text.size()), line);
  }

  std::mt19937_64 random_;
  const std::vector<std::string>& originals_;
};

void require(bool truth, const std::string& what) {
  if (!truth) throw std::logic_error(what);
}

void use(const TopoSystem& system, int nodes) {
  const TopoSystem again = parse_topology(system.xml, "again");
  require(again.xml == system.xml, "written and read again it differs");
  require(again.links.size() == system.links.size(), "links differ");
  if (nodes > 1 && system.nets.empty()) nodes = 1;
  const Cluster cluster = cluster_of(system, nodes);
  require(!cluster.ranks.empty(), "a machine without devices");
  const ChannelPlan plan = plan_channels(cluster, {.max_channels = 4});
  for (const CommChannel& channel : plan.channels) {
    const std::set<int> seen(channel.ring.begin(), channel.ring.end());
    require(seen.size() == cluster.ranks.size() && channel.ring.size() == seen.size(), "a ring leaves ranks out");
  }
  require(plan.ring_gbps > 0 && plan.tree_gbps > 0, "a plan without a rate");
  relieve_nics(system);
  topo::document_warnings(system.xml, "again");
  topo::facts_of(system);
  if (nodes > 1) rail_routes(cluster, 0);
}

}  // namespace
}  // namespace slip

int main(int argc, char** argv) {
  const std::vector<std::string> originals = {slip::text_of("azure_ncv4-topo.xml"),
                                              slip::text_of("azure_ndv4-topo.xml"),
                                              slip::text_of("host_nic.xml"),
                                              slip::text_of("nvswitch8.xml"),
                                              slip::text_of("../../../bench/predict/machines/mi300x8.xml"),
                                              slip::text_of("../../../bench/predict/machines/a100x8_16x100g.xml")};
  return slip::fuzz_main(argc, argv, "fuzz_topologies", [&](std::uint64_t seed, std::string& input) {
    input = slip::Xml(seed, originals).make();
    try {
      for (const slip::TopoSystem& host : slip::topo::parse_topologies(input, "mutated"))
        slip::use(host, 1 + static_cast<int>(seed % 2));
    } catch (const slip::Error& error) {
      if (error.code() != slip::ErrorCode::kParse) throw;
      return false;
    }
    return true;
  });
}
