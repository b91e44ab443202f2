#if SLIP_HAS_UCX
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <signal.h>

#include <array>
#include <memory>
#include <type_traits>

#include "base/env.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"
#include "transport/net_ucx/ucx_worker.hpp"

namespace slip::transport {
namespace {

constexpr const char* kName = "libucp.so.0";
constexpr unsigned kMajor = 1, kMinMinor = 13;  // 1.13 is the first version whose operations take a memory handle

// Restores in its destructor the signal handlers that were changed while it existed.
class KeptSignals : base::NoCopy {
 public:
  KeptSignals() {
    for (int number = 1; number < NSIG; ++number)
      known_[at(number)] = ::sigaction(number, nullptr, &kept_[at(number)]) == 0;
  }
  ~KeptSignals() {
    for (int number = 1; number < NSIG; ++number) {
      struct sigaction now {};
      if (!known_[at(number)] || ::sigaction(number, nullptr, &now) != 0) continue;
      if (now.sa_sigaction != kept_[at(number)].sa_sigaction)
        static_cast<void>(::sigaction(number, &kept_[at(number)], nullptr));
    }
  }

 private:
  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  std::array<struct sigaction, NSIG> kept_{};
  std::array<bool, NSIG> known_{};
};

void* open_library(const std::string& file) {
  const bool is_first = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) == nullptr;
  const auto is_set = [](const char* variable) { return !base::env_text(variable).empty(); };
  void* handle = nullptr;
  if (is_first && !is_set("UCX_HANDLE_ERRORS") && !is_set("UCX_ERROR_SIGNALS")) {
    const KeptSignals kept;
    handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  } else {
    handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (!handle || !is_first || is_set("UCX_LOG_LEVEL") || base::debugs("net")) return handle;
  using SetOption = ucs_status_t (*)(const char*, const char*);
  const auto set_option = reinterpret_cast<SetOption>(::dlsym(handle, "ucs_global_opts_set_value"));
  if (set_option) static_cast<void>(set_option("LOG_LEVEL", "fatal"));  // our own errors report failures
  return handle;
}

// Finds all functions, also those of the libraries that libucp needs; returns the name of the first one that is
// missing, or "".
std::string find_functions(void* handle, UcxLibrary& library) {
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (!function && missing.empty()) missing = name;
  };
#define SLIP_UCX_FIND(MEMBER, FUNCTION) find(library.MEMBER, #FUNCTION);
  SLIP_UCX_FUNCTIONS(SLIP_UCX_FIND)
#undef SLIP_UCX_FIND
  return missing;
}

UcxSearch load(const std::string& file) {
  void* const handle = open_library(file);  // never closed: UCX has threads and static objects
  if (!handle) {
    const char* const why = ::dlerror();
    return {nullptr, why ? why : fmt::format("{}: it cannot be loaded", file)};
  }
  auto library = std::make_unique<UcxLibrary>();
  link_map* map = nullptr;
  const bool mapped = ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0] != '\0';
  const std::string path = mapped ? map->l_name : file;
  if (const std::string missing = find_functions(handle, *library); !missing.empty())
    return {nullptr,
            fmt::format("{}: it has no function {}: UCX {}.{} or later is needed", path, missing, kMajor, kMinMinor)};
  unsigned major = 0, minor = 0, release = 0;
  library->get_version(&major, &minor, &release);
  library->text = fmt::format("UCX {}.{}.{} ({})", major, minor, release, path);
  if (major != kMajor || minor < kMinMinor)
    return {nullptr,
            fmt::format("this is {}: {}.{} or a later {}.x is needed", library->text, kMajor, kMinMinor, kMajor)};
  return {library.release(), {}};
}

}  // namespace

UcxSearch find_ucx() {
  struct Found {
    UcxSearch search = load(base::env().ucx_library.empty() ? kName : base::env().ucx_library);
  };
  return base::process_wide<Found>().search;  // if two threads load it, both get the same library
}

}  // namespace slip::transport
#endif
