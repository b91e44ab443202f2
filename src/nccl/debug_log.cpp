#include "nccl/debug_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/env.hpp"
#include "base/terminal.hpp"

namespace slip::nccl {

std::string debug_file_name(std::string_view pattern, std::string_view host, int pid) {
  std::string result;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      result += pattern[i];
      continue;
    }
    switch (pattern[++i]) {
      case 'h': result += host.substr(0, host.find('.')); break;
      case 'p': result += std::to_string(pid); break;
      case '%': result += '%'; break;
      default: (result += '%') += pattern[i];
    }
  }
  return result;
}

void DebugLog::open() {
  opened_ = true;
  const std::string pattern = base::env_text("NCCL_DEBUG_FILE");
  if (pattern.empty()) return;
  std::array<char, 256> host{};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  const int pid = ::getpid();
  const std::string name = debug_file_name(pattern, host.data(), pid);
  file_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) base::log_line(fmt::format("NCCL_DEBUG_FILE={}: {}", name, std::strerror(errno)));
  prefix_ = fmt::format("{}:{} NCCL ", host.data(), pid);
}

void DebugLog::write(std::string_view text) {
  const std::string line = base::single_line_text(text);
  const base::LockGuard lock(mutex_);
  if (!opened_) open();
  if (file_ < 0) return base::log_line(fmt::format("NCCL {}", line));
  const std::string all = prefix_ + line + "\n";
  // One write for a line: lines of processes that share the file are not mixed. A full disk loses the line.
  static_cast<void>(!::write(file_, all.data(), all.size()));
}

void DebugLog::reset() {
  const base::LockGuard lock(mutex_);
  if (file_ >= 0) ::close(file_);
  file_ = -1;
  opened_ = false;
}

}  // namespace slip::nccl
