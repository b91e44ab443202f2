#include "comm/links.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "comm/net_link.hpp"
#include "comm/pipe.hpp"

namespace slip {

Links::Links(Bootstrap& bootstrap, SharedHost* host, std::int64_t timeout_ns)
    : bootstrap_(bootstrap),
      host_(host),
      timeout_ns_(timeout_ns),
      arrived_(static_cast<std::size_t>(bootstrap.nranks())),
      outlets_(static_cast<std::size_t>(bootstrap.nranks())),
      inlets_(static_cast<std::size_t>(bootstrap.nranks())) {
  // Everybody must decide the same: what one rank alone can reach is not enough.
  const bool own = std::any_of(outlets_.begin(), outlets_.end(), [&](const auto& one) {
    const auto rank = static_cast<int>(&one - outlets_.data());
    return rank != bootstrap.rank() && !through_memory(rank);
  });
  const std::vector<char> needed = bootstrap.all_gather(static_cast<char>(own ? 1 : 0));
  if (std::find(needed.begin(), needed.end(), 1) == needed.end()) return;
  NetOptions options;
  options.rank = bootstrap.rank();
  options.host = bootstrap.host();
  listener_ = net_tcp().listen(options);
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
    const Placement& here = bootstrap_.placements()[static_cast<std::size_t>(own)];
    const Placement& there = bootstrap_.placements()[static_cast<std::size_t>(rank)];
    const bool threads = same_process(here, there), named = here.pid_space == there.pid_space;
    if (out)
      return std::make_unique<PipeOutlet>(host_->pipe(own, rank), threads ? PipeReach::kThreads
                                                                  : named ? PipeReach::kProcesses
                                                                          : PipeReach::kNever);
    return std::make_unique<PipeInlet>(host_->pipe(rank, own), own, rank, threads ? 0 : there.pid);
  }
  if (out) return std::make_unique<NetOutlet>([this, rank] { return connect(rank); });
  return std::make_unique<NetInlet>([this, rank] { return accept(rank); }, own, rank);
}

std::unique_ptr<NetSender> Links::connect(int rank) {
  NetOptions options;
  options.rank = bootstrap_.rank();
  try {
    return net_tcp().connect(handles_[static_cast<std::size_t>(rank)], options,
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

void Links::attend(bool attended) {
  for (const Made& one : made_) {
    if (one.end->begun() != one.end->done()) one.end->attend(attended);
  }
}

}  // namespace slip
