#include "comm/links.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "comm/net_link.hpp"
#include "comm/pipe.hpp"

namespace slip {
namespace {
constexpr std::int64_t kRestNs = 1'000'000;  // a failure elsewhere is not told by a link
}

Links::Links(Bootstrap& bootstrap, SharedHost* host, NetOptions lines, std::int64_t timeout_ns)
    : bootstrap_(bootstrap),
      host_(host),
      lines_(std::move(lines)),
      timeout_ns_(timeout_ns),
      arrived_(static_cast<std::size_t>(bootstrap.nranks())),
      outlets_(static_cast<std::size_t>(bootstrap.nranks())),
      inlets_(static_cast<std::size_t>(bootstrap.nranks())) {
  lines_.rank = bootstrap.rank();
  lines_.host = bootstrap.host();
  // Everybody must decide the same: what one rank alone can reach is not enough.
  const bool own = std::any_of(outlets_.begin(), outlets_.end(), [&](const auto& one) {
    const auto rank = static_cast<int>(&one - outlets_.data());
    return rank != bootstrap.rank() && !through_memory(rank);
  });
  const std::vector<char> needed = bootstrap.all_gather(static_cast<char>(own ? 1 : 0));
  if (std::find(needed.begin(), needed.end(), 1) == needed.end()) return;
  listener_ = net_tcp().listen(lines_);
  handles_ = bootstrap.all_gather(listener_->handle());
}

bool Links::through_memory(int rank) const { return host_ && host_->has(rank); }

LinkEnd& Links::end(Ends& ends, int rank, bool out) {
  std::unique_ptr<LinkEnd>& place = ends[static_cast<std::size_t>(rank)];
  if (!place) {
    place = make(rank, out);
    made_.push_back({place.get(), rank});
  }
  return *place;
}

std::unique_ptr<LinkEnd> Links::make(int rank, bool out) {
  const int own = bootstrap_.rank();
  if (through_memory(rank)) {
    const auto& placements = bootstrap_.placements();
    if (out)
      return std::make_unique<PipeOutlet>(
          host_->pipe(own, rank),
          same_process(placements[static_cast<std::size_t>(own)], placements[static_cast<std::size_t>(rank)]));
    return std::make_unique<PipeInlet>(host_->pipe(rank, own), own, rank);
  }
  if (out) return std::make_unique<NetOutlet>([this, rank] { return connect(rank); });
  return std::make_unique<NetInlet>([this, rank] { return accept(rank); }, own, rank);
}

std::unique_ptr<NetSender> Links::connect(int rank) {
  try {
    return net_tcp().connect(handles_[static_cast<std::size_t>(rank)], lines_,
                             {now_ns() + timeout_ns_, &bootstrap_.broken_flag()});
  } catch (const Error& error) {
    failed_ = rank;
    if (error.code() == Code::kAborted) bootstrap_.throw_if_broken();  // which says why
    throw;
  }
}

std::unique_ptr<NetReceiver> Links::accept(int rank) {
  while (std::unique_ptr<NetReceiver> receiver = listener_->accept(nullptr)) {
    const int from = receiver->peer().rank;
    if (from >= 0 && from < bootstrap_.nranks()) arrived_[static_cast<std::size_t>(from)] = std::move(receiver);
  }
  return std::move(arrived_[static_cast<std::size_t>(rank)]);
}

bool Links::drive() {
  bool moved = false;
  for (const Made& one : made_) moved = drive(*one.end, one.rank) || moved;
  return moved;
}

bool Links::drive(LinkEnd& end, int rank) {
  try {
    return end.drive();
  } catch (...) {
    failed_ = rank;
    throw;
  }
}

bool Links::rest() {
  watched_.clear();
  for (const Made& one : made_) {
    if (one.end->begun() != one.end->done() && !one.end->watch(watched_)) return false;
  }
  wait_for_any(watched_, kRestNs);
  return true;
}

void Links::attend(bool attended) {
  for (const Made& one : made_) {
    if (one.end->begun() != one.end->done()) one.end->attend(attended);
  }
}

}  // namespace slip
