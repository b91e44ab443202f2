#include "transport/bootstrap/secret.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/hash.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip::transport {
namespace {

template <class T>
T random_value() {
  T value{};
  if (::getrandom(&value, sizeof(value), 0) != static_cast<ssize_t>(sizeof(value)))
    base::fail(ErrorCode::kIo, {}, "the system gives no random bytes: {}", std::strerror(errno));
  return value;
}

constexpr std::size_t kMinBytes = 16, kMaxBytes = 4096;
constexpr const char* kAdvice = "set SLIP_SECRET to at least 16 random characters, the same for all ranks";

[[noreturn]] void fail(const std::string& text) { base::fail(ErrorCode::kInvalidValue, {}, "{}; {}", text, kAdvice); }

int open_private(const std::string& path, int flags) {
  return ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

std::string read(const OwnedDescriptor& file, const std::string& path) {
  struct stat found {};
  if (::fstat(file.number(), &found) != 0) fail(fmt::format("the secret in '{}': {}", path, std::strerror(errno)));
  if (!S_ISREG(found.st_mode) || (found.st_uid != ::geteuid() && found.st_uid != 0) || (found.st_mode & 077) != 0)
    fail(fmt::format("the secret in '{}' must be a file of this user that no other can read or write (chmod 600)",
                     path));
  std::array<char, kMaxBytes> bytes;
  const ssize_t got = ::read(file.number(), bytes.data(), bytes.size());
  if (got < static_cast<ssize_t>(kMinBytes))
    fail(fmt::format("the secret in '{}' has {} bytes: at least {} are needed", path, std::max<ssize_t>(got, 0),
                     kMinBytes));
  return {bytes.data(), static_cast<std::size_t>(got)};
}

std::string own_path() {
  const std::string config = base::env_text("XDG_CONFIG_HOME"), home = base::env_text("HOME");
  if (config.empty() && home.empty())
    fail("neither HOME nor XDG_CONFIG_HOME is set, so there is no folder for the secret of this user");
  return (config.empty() ? home + "/.config" : config) + "/slipstream/secret";
}

// Writes the file under another name and then links it, so that no process reads an incomplete file. If another process
// has created the file meanwhile, its content is used.
void make(const std::string& path) {
  const std::string part = fmt::format("{}.{:016x}", path, random_number());
  std::error_code ignored;  // open() below reports the error
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string bytes = random_name() + random_name() + '\n';
  {
    const OwnedDescriptor file(open_private(part, O_WRONLY | O_CREAT | O_EXCL));
    if (file.number() < 0 || ::write(file.number(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
        ::fsync(file.number()) != 0) {
      const int error = errno;
      ::unlink(part.c_str());
      fail(fmt::format("cannot write this user's secret to '{}': {}", part, std::strerror(error)));
    }
  }
  const bool failed = ::link(part.c_str(), path.c_str()) != 0 && errno != EEXIST;
  const int error = errno;
  ::unlink(part.c_str());
  if (failed) fail(fmt::format("cannot write this user's secret to '{}': {}", path, std::strerror(error)));
}

std::string own_secret() {
  const std::string path = own_path();
  for (int attempt = 0;; ++attempt) {
    const OwnedDescriptor file(open_private(path, O_RDONLY));
    if (file.number() >= 0) return read(file, path);
    if (errno != ENOENT || attempt > 0) fail(fmt::format("cannot read '{}': {}", path, std::strerror(errno)));
    make(path);
  }
}

std::string secret_text(bool one_host) {
  if (const std::string words = base::env_text("SLIP_SECRET"); !words.empty()) {
    if (words.size() < kMinBytes)
      fail(fmt::format("SLIP_SECRET has {} characters: at least {} are needed", words.size(), kMinBytes));
    return words;  // NOLINT(performance-no-automatic-move): g++ 12 falsely warns of that move
  }
  if (const std::string path = base::env_text("SLIP_SECRET_FILE"); !path.empty()) {
    const OwnedDescriptor file(open_private(path, O_RDONLY));
    if (file.number() < 0) fail(fmt::format("cannot read SLIP_SECRET_FILE={}: {}", path, std::strerror(errno)));
    return read(file, path);
  }
  return one_host ? std::string() : own_secret();
}

}  // namespace

Secret random_secret() { return random_value<Secret>(); }
std::uint64_t random_number() { return random_value<std::uint64_t>(); }

std::string random_name() { return fmt::format("{:016x}{:016x}", random_number(), random_number()); }

Secret derive(std::span<const std::byte> from, std::string_view label, std::span<const std::byte> salt) {
  const std::byte zero{0};  // ends the label, so that label and salt cannot be confused
  const base::Sha256::Digest digest = base::Hmac(from).of({std::as_bytes(std::span(label)), {&zero, 1}, salt});
  Secret secret;
  std::copy_n(digest.begin(), secret.size(), secret.begin());
  return secret;
}

// Mixes the bits once more after FNV-1a: otherwise texts that differ only at the end would differ in the low bits only.
std::uint64_t number_of(std::string_view text) {
  std::uint64_t value = base::hash_of(text);
  value = (value ^ (value >> 32)) * 0x9e3779b97f4a7c15;
  return value ^ (value >> 29);
}

Secret shared_secret(std::string_view job, bool one_host) {
  const std::string text = secret_text(one_host);
  return derive(std::as_bytes(std::span(text)), "slip job", std::as_bytes(std::span(job)));
}

}  // namespace slip::transport
