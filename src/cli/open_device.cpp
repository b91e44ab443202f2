#include "cli/open_device.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backend/sim/description.hpp"
#include "cli/commands.hpp"
#include "runtime/backend.hpp"

namespace slip::cli {
namespace {

bool has_backend(std::string_view prefix) {
  return std::ranges::any_of(backends(), [&](const BackendEntry& entry) { return entry.prefix == prefix; });
}

std::string allowed_devices() {
  std::string text;
  for (const BackendEntry& entry : backends()) {
    if (entry.prefix != "sim") text += fmt::format("{}, ", entry.prefix);
  }
  for (const EmbeddedFile& file : embedded_devices()) text += fmt::format("sim:{}, ", file.name);
  return text + "or the path of a description (.json)";
}

}  // namespace

Device open_device(const std::string& name, const DeviceOptions& options) {
  const std::string prefix = name.substr(0, name.find(':'));
  if (prefix == "cuda" && !has_backend("cuda"))
    throw UsageError(fmt::format("no device '{}': this program was built without CUDA", name));
  if (!has_backend(prefix)) throw UsageError(fmt::format("no device '{}': there are {}", name, allowed_devices()));
  try {
    return Device::open(name, options, {});
  } catch (const Error& error) {
    if (error.code() == Code::kInvalidDevice && prefix == "sim")
      throw UsageError(fmt::format("no device '{}': there are {}", name, allowed_devices()));
    if (error.code() == Code::kInvalidDevice || error.code() == Code::kIo || error.code() == Code::kParse)
      throw UsageError(fmt::format("device '{}': {}", name, error.what()));
    throw;
  }
}

}  // namespace slip::cli
