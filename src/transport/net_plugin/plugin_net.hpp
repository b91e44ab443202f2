// The network of a plug-in: connections between ranks that an NCCL network plug-in carries (plugin.hpp).
#pragma once

#include <string>

#include "transport/net/net.hpp"

namespace slip::transport {

struct PluginNet {
  const Net* net = nullptr;  // lives until the process ends
  std::string name;          // the plug-in's own name
  std::string text;          // the library, the version of its interface and its devices
};

// `name`: as in NCCL_NET_PLUGIN, see NetPlugin::load(). Throws if the plug-in cannot be loaded or used; the error names
// the library.
PluginNet net_plugin(const std::string& name);

}  // namespace slip::transport
