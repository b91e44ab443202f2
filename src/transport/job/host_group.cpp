#include "transport/job/host_group.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {
namespace {

bool has_unsent(const Host& host) { return host.state == Host::State::kRunning && host.connection.has_unsent(); }

}  // namespace

HostGroup::HostGroup(const std::vector<HostRanks>& hosts, const RemoteShell& shell, const std::string& program) {
  for (const HostRanks& host : hosts) hosts_.emplace_back(host, shell, program);
}

void HostGroup::send_running(const AgentFrame& frame) {
  for (Host& host : hosts_) {
    if (host.state == Host::State::kRunning) host.connection.send(frame);
  }
}

void HostGroup::send_heartbeat() {
  for (Host& host : hosts_) {
    if (host.state != Host::State::kConnecting && !host.is_over())
      host.connection.send({.kind = AgentFrameKind::kAlive});
  }
}

void HostGroup::flush_running(std::int64_t until_ns) {
  while (std::ranges::any_of(hosts_, has_unsent) && base::now_ns() < until_ns) {
    std::vector<pollfd> watched;
    for (const Host& host : hosts_) {
      if (has_unsent(host)) host.connection.watch(watched, false);
    }
    poll_until(watched, until_ns);
    for (Host& host : hosts_) {
      if (has_unsent(host)) host.connection.flush();
    }
  }
}

std::vector<int> HostGroup::running_ranks() const {
  std::vector<int> result;
  for (const Host& host : hosts_) result.insert(result.end(), host.running.begin(), host.running.end());
  std::ranges::sort(result);
  return result;
}

std::string HostGroup::preferred_addresses() const {
  if (!hosts_.front().connection.is_local()) return hosts_.front().hello.own_host;
  std::string list;
  for (const Host& host : hosts_) {
    if (!host.connection.is_local()) list += (list.empty() ? "" : ",") + host.hello.from_host;
  }
  return list;
}

void HostGroup::throw_failures() const {
  std::string text;
  std::size_t count = 0;
  for (const Host& host : hosts_) {
    if (!host.failure.empty()) text += fmt::format("{}host {}: {}", count++ == 0 ? "" : "\n", host.name, host.failure);
  }
  if (count == 0) return;
  if (count == 1) base::fail(Code::kIo, {}, "no rank was started: {}", text);
  base::fail(Code::kIo, {}, "no rank was started, {} of {} hosts failed:\n{}", count, hosts_.size(), text);
}

}  // namespace slip::transport
