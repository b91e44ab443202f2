// Damaged and hostile ledgers. Each is either refused or read. A ledger that was read can be printed, written as JSON
// and searched for stalls, in little time and memory.
//
// usage: fuzz_ledgers SECONDS SEED
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "base/json_text.hpp"
#include "base/terminal.hpp"
#include "comm/diagnose/stalls.hpp"
#include "fuzz/fuzz_loop.hpp"
#include "support/ledger_image.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip {
namespace {

void require(bool truth, const std::string& what) {
  if (!truth) throw std::logic_error(what);
}

class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}

  // Some entries of a few communicators, then random 64-bit values at random offsets.
  test::LedgerImage make() {
    test::LedgerImage image;
    const std::uint64_t count = below(10) == 0 ? transport::kLedgerEntries : below(40);
    for (std::uint64_t i = 0; i < count; ++i) change(image.add(below(4), static_cast<std::int32_t>(below(8)), 8));
    for (std::uint64_t i = below(4) == 0 ? below(2000) : below(4); i > 0; --i) {
      const std::span<std::byte> bytes = image.bytes();
      // The header half of the time: it is small, and most of an entry is text.
      const std::uint64_t word = any_word(),
                          at = below(below(2) ? sizeof(transport::LedgerHeader) / 8 : bytes.size() / 8) * 8;
      std::memcpy(bytes.data() + at, &word, sizeof(word));
    }
    if (below(2)) image.header().magic = transport::LedgerHeader::kMagic, image.header().started = kStarted;
    return image;
  }
  std::int64_t size() {
    if (below(8) != 0) return transport::kLedgerBytes;
    return static_cast<std::int64_t>(below(2) ? below(2 * transport::kLedgerBytes) : below(std::uint64_t{1} << 36));
  }

  static constexpr std::uint64_t kStarted = 77;

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  std::uint64_t any_word() {
    switch (below(6)) {
      case 0: return below(10);
      case 1: return ~std::uint64_t{0} - below(3);
      case 2: return (std::uint64_t{1} << below(64)) - below(2);
      case 3: return 0x1b5b324a1b5b324a;  // escape sequences
      default: return random_();
    }
  }
  // Consistent calls, so that entries are not refused as torn: waits, cycles, calls that do not exist.
  void change(transport::LedgerEntry& entry) {
    const std::uint64_t begun = below(3), first = any_word(), second = below(2) ? below(4) | 8ULL << 60 : any_word();
    entry.begun.store(begun);
    entry.call[0].store(first);
    entry.call[1].store(second);
    entry.check.store(transport::check_of_call(begun, first, second));
    entry.enqueued.store(begun + below(2));
    entry.ended.store(below(begun + 1));
    entry.waits_for.store(below(3) ? below(9) : any_word());
    entry.wait_ns.store(below(2) ? 1 : any_word());
    entry.streams[begun % transport::LedgerEntry::kStreams].store(below(3));
    entry.life.store(below(4) ? 1 : below(7));
    for (transport::LedgerWord& word : entry.text) word.store(below(4) ? 0 : any_word());
  }

  std::mt19937_64 random_;
};

void require_safe(const std::string& text) {
  require(base::is_utf8(text) && base::single_line_text(text) == text, "a text that cannot be printed");
}

void use(const transport::ProcessLedger& ledger) {
  std::vector<comm::RankState> sights;
  nlohmann::json json = nlohmann::json::array();
  require(ledger.ranks.size() <= static_cast<std::size_t>(transport::kLedgerEntries), "more entries than a ledger has");
  for (const transport::LedgerView& view : ledger.ranks) {
    const comm::RankState sight{view, "RSTZ"[view.begun % 4]};
    for (const std::string& text :
         {std::string(view.text), std::string(view.device), std::string(view.host), comm::doing(sight),
          comm::call_text(view), comm::state_word(sight), comm::communicator_text(view)}) {
      require_safe(text);
      json.push_back(text);
    }
    require(view.rank >= 0 && view.nranks >= 0 && comm::in_state_ns(sight) >= 0, "a number below 0");
    sights.push_back(sight);
  }
  for (const comm::Stall& one : comm::find_stalls(sights)) {
    require_safe(one.text);
    json.push_back(one.text);
  }
  static_cast<void>(json.dump());  // throws where a text is not UTF-8
}

}  // namespace
}  // namespace slip

int main(int argc, char** argv) {
  return slip::fuzz_main(argc, argv, "fuzz_ledgers", [](std::uint64_t seed, std::string& input) {
    slip::Maker maker(seed);
    slip::test::LedgerImage image = maker.make();
    const std::span<const std::byte> bytes = image.bytes();
    input = fmt::format("{} entries", image.header().entries.load());
    const int file = slip::test::ledger_file(bytes, maker.size());
    slip::transport::LedgerLimits limits;
    const auto ledger = slip::transport::read_ledger_file(file, slip::Maker::kStarted, limits);
    ::close(file);
    if (!ledger) return false;
    slip::use(*ledger);
    return true;
  });
}
