#include "support/ledger_image.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "transport/job/placement.hpp"

namespace slip::test {

void put_words(std::span<transport::LedgerWord> words, std::string_view text) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint64_t word = 0;
    const std::string_view piece = text.substr(std::min(text.size(), i * 8), 8);
    if (!piece.empty()) std::memcpy(&word, piece.data(), piece.size());
    words[i].store(word);
  }
}

LedgerImage::LedgerImage() : lines_((transport::kLedgerBytes + sizeof(CacheLine) - 1) / sizeof(CacheLine)) {
  transport::LedgerHeader* const made = new (lines_.data()) transport::LedgerHeader;
  made->magic = transport::LedgerHeader::kMagic;
  made->started = transport::Placement::own().started;
  made->pid = ::getpid();
  std::strcpy(made->host, "host");
}

transport::LedgerEntry& LedgerImage::entry(std::int32_t index) {
  std::byte* const data = reinterpret_cast<std::byte*>(lines_.data()) + sizeof(transport::LedgerHeader);
  return reinterpret_cast<transport::LedgerEntry*>(data)[index];
}

transport::LedgerEntry& LedgerImage::add(std::uint64_t communicator, std::int32_t rank, std::int32_t nranks) {
  transport::LedgerEntry& entry = this->entry(header().entries.fetch_add(1));
  entry.version.store(2);
  entry.life.store(static_cast<std::uint64_t>(transport::LedgerLife::kJoined));
  entry.communicator.store(communicator);
  entry.rank_and_count.store(static_cast<std::uint64_t>(static_cast<std::uint32_t>(nranks)) << 32 |
                             static_cast<std::uint32_t>(rank));
  entry.enqueued.store(1);
  entry.begun.store(1);
  entry.check.store(transport::check_of_call(1, 0, 0));
  put_words(entry.device, "cpu");
  return entry;
}

int ledger_file(std::span<const std::byte> content, std::int64_t bytes) {
  const int file = ::memfd_create(transport::kLedgerName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const std::size_t count = std::min(content.size(), static_cast<std::size_t>(bytes));
  if (file < 0 || ::ftruncate(file, bytes) != 0 ||
      ::pwrite(file, content.data(), count, 0) != static_cast<ssize_t>(count) ||
      ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    std::abort();
  return file;
}

LedgerProcess::LedgerProcess(LedgerImage image, std::int64_t bytes) {
  const int file = ledger_file(image.bytes(), bytes);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    for (;;) ::pause();
  }
  image.header().started = transport::process_state(std::to_string(pid_)).started;
  if (::pwrite(file, &image.header(), sizeof(transport::LedgerHeader), 0) != sizeof(transport::LedgerHeader))
    std::abort();
  ::close(file);
}

LedgerProcess::~LedgerProcess() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace slip::test
