// The plug-ins of the tests: our own, one on libfabric, and ones with faults (tests/plugins).
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "transport/net/net_choice.hpp"

namespace slip::test {

// The file of a plug-in: "slip" is our own; "v8" to "v11" are our own with one version of the interface only;
// "libfabric".
inline std::string plugin_file(std::string_view name) {
  return name == "slip" ? SLIP_OWN_PLUGIN : SLIP_TEST_PLUGINS "/libnccl-net-" + std::string(name) + ".so";
}

inline const transport::Net& plugin_named(std::string_view name) {
  return *transport::net_plugin(plugin_file(name)).net;
}

// A variable of the environment for the life of this object.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
};

// Faults of the plug-in "v9", see tests/plugins/wrapped_net.c.
class Fault : public Variable {
 public:
  explicit Fault(const std::string& faults) : Variable("SLIP_PLUGIN_FAULT", faults) {}
};

}  // namespace slip::test
