#include "cli/preload.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/env.hpp"
#include "base/fail.hpp"

namespace slip::cli {
namespace {

// Our libnccl.so.2: beside the program in a build folder, in the library folder of an installation.
std::string nccl_library() {
  namespace fs = std::filesystem;
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  std::string searched;
  for (const char* const place : {SLIP_NCCL_BUILT, SLIP_NCCL_INSTALLED}) {
    const fs::path found = (folder / place / "libnccl.so.2").lexically_normal();
    if (fs::exists(found)) return found.string();
    searched += fmt::format("{}{}", searched.empty() ? "" : ", ", found.string());
  }
  throw Error(Code::kIo, fmt::format("--nccl: there is no libnccl.so.2 of Slipstream; searched: {}", searched), {});
}

}  // namespace

// The first library that is preloaded wins, so ours comes before those of the caller.
void preload_nccl(std::map<std::string, std::string>& changes) {
  const auto given = changes.find("LD_PRELOAD");
  const std::string others = given != changes.end() ? given->second : base::env_text("LD_PRELOAD");
  changes["LD_PRELOAD"] = nccl_library() + (others.empty() ? "" : ":" + others);
}

}  // namespace slip::cli
