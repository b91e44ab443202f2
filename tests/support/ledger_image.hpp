// Ledgers with any content, to test readers with ledgers of a faulty or hostile process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "transport/ledger/ledger.hpp"

namespace slip::test {

void put_words(std::span<transport::LedgerWord> words, std::string_view text);

// The bytes of a ledger. A new one has a good header and no entries.
class LedgerImage {
 public:
  LedgerImage();
  transport::LedgerHeader& header() { return *reinterpret_cast<transport::LedgerHeader*>(lines_.data()); }
  // Adds an entry of a rank that is in its first call.
  transport::LedgerEntry& add(std::uint64_t communicator, std::int32_t rank, std::int32_t nranks);
  transport::LedgerEntry& entry(std::int32_t index);
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(lines_)).first(transport::kLedgerBytes); }
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(lines_)).first(transport::kLedgerBytes); }

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  std::vector<CacheLine> lines_;
};

// Makes a sealed memfd with a ledger's name, this content and this size. The caller closes it.
int ledger_file(std::span<const std::byte> content, std::int64_t bytes = transport::kLedgerBytes);

// A process that has such a file open and does nothing. Its start time is written into the image. The destructor kills
// the process.
class LedgerProcess {
 public:
  explicit LedgerProcess(LedgerImage image, std::int64_t bytes = transport::kLedgerBytes);
  ~LedgerProcess();
  LedgerProcess(const LedgerProcess&) = delete;
  LedgerProcess& operator=(const LedgerProcess&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

}  // namespace slip::test
