#include <fmt/format.h>

#include <map>
#include <memory>
#include <utility>

#include "base/sync.hpp"
#include "transport/net/net_choice.hpp"
#include "transport/net/tcp_greeting.hpp"
#include "transport/net_plugin/plugin_end.hpp"

namespace slip::transport {
namespace {

// A listener's handle is the address of its control socket. The receiver gives the address in the plug-in's network to
// each sender on request, because a listener of a plug-in accepts one connection only.
constexpr const char kMark[] = "plug";

class PluginListener final : public GreetingListener {
 public:
  PluginListener(const NetPlugin& plugin, const NetOptions& options)
      : GreetingListener(options, kMark), plugin_(plugin), context_(plugin.context_of(options.key, options.rank)) {}

 private:
  std::unique_ptr<NetReceiver> make_receiver(Arrived arrived) override {
    return make_plugin_receiver(plugin_, context_, std::move(arrived.peer), std::move(arrived.sockets.front()));
  }

  const NetPlugin& plugin_;
  const std::shared_ptr<const PluginContext> context_;  // null: the plug-in has no contexts
};

class LoadedNet final : public Net {
 public:
  explicit LoadedNet(const NetPlugin& plugin) : plugin_(plugin) {}

  std::unique_ptr<NetListener> listen(const NetOptions& options) const override {
    return std::make_unique<PluginListener>(plugin_, options);
  }

  std::unique_ptr<NetSender> connect(const NetHandle& handle, const NetOptions& options,
                                     const Deadline& deadline) const override {
    NetOptions control = options;
    control.sockets = 1;
    Greeted greeted = connect_and_greet(handle, kMark, control, deadline);
    greeted.peer.channel = options.channel;
    return make_plugin_sender(plugin_, plugin_.context_of(options.key, options.rank), std::move(greeted.peer),
                              std::move(greeted.sockets.front()));
  }

 private:
  const NetPlugin& plugin_;
};

}  // namespace

PluginNet net_plugin(const std::string& name) {
  const NetPlugin& plugin = NetPlugin::load(name);
  std::string devices;
  for (const PluginDevice& one : plugin.devices())
    devices += fmt::format("{}{} ({} Mbit/s)", devices.empty() ? "" : ", ", one.name, one.speed_mbps);
  static base::ForkMutex mutex;
  // Never deleted, as in load().
  static auto* const kMade SLIP_PT_GUARDED_BY(mutex) = new std::map<const NetPlugin*, std::unique_ptr<const LoadedNet>>;
  const base::LockGuard lock(mutex);
  std::unique_ptr<const LoadedNet>& net = (*kMade)[&plugin];
  if (!net) net = std::make_unique<const LoadedNet>(plugin);
  return {net.get(), plugin.name(), fmt::format("{}; devices: {}", plugin.text(), devices)};
}

}  // namespace slip::transport
