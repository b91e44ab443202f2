#include "cli/collectives/bandwidth.hpp"

#include <fmt/format.h>

#include "base/quantity_text.hpp"
#include "cli/commands.hpp"

namespace slip::cli {

std::uint64_t size_of(const std::string& text, const char* option) {
  std::uint64_t bytes = 0;
  std::string whole = text;
  if (!whole.empty() && std::string_view("KMG").find(whole.back()) != std::string_view::npos) whole += "iB";  // 256M
  if (!parse_bytes(whole, bytes) || bytes == 0)
    throw UsageError(fmt::format("{} {}: a size is expected, as 8, 64K or 256MiB", option, text));
  return bytes;
}

double bus_share(Collective kind, int nranks) {
  const double others = static_cast<double>(nranks - 1) / nranks;
  switch (kind) {
    case Collective::kAllReduce: return 2 * others;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kGather:
    case Collective::kScatter: return others;
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kBarrier:
    case Collective::kMessage: return 1;
  }
  return 1;
}

bool counts_all_blocks(Collective kind) {
  return kind != Collective::kAllReduce && kind != Collective::kReduce && kind != Collective::kBroadcast;
}

}  // namespace slip::cli
