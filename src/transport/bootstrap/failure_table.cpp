#include "transport/bootstrap/failure_table.hpp"

#include "base/fail.hpp"

namespace slip::transport {
namespace {

using Role = ControlConnection::Role;

void send(ControlConnection& connection, const Loss& loss, int nranks) {
  const LostBody body{static_cast<std::int32_t>(loss.cause), loss.noticed_by};
  connection.channel.queue({.kind = FrameKind::kLost, .rank = loss.rank, .nranks = nranks}, bytes_of(body));
}

void send(ControlConnection& connection, const RankFailure& failure, int nranks) {
  connection.channel.queue({.kind = FrameKind::kFailed,
                            .rank = failure.rank,
                            .tag = static_cast<std::uint64_t>(failure.code),
                            .nranks = nranks},
                           bytes_of(std::string_view(failure.text)));
}

}  // namespace

std::string Loss::text() const {
  switch (cause) {
    case Cause::kEnded:
      return fmt::format("rank {} is gone: its connection to rank {} closed; its process ended or was killed", rank,
                         noticed_by);
    case Cause::kSilent:
      return fmt::format("rank {} gives no sign of life: noticed by rank {}; it is stopped, or cut off", rank,
                         noticed_by);
    case Cause::kAborted: break;
  }
  return fmt::format("rank {} aborted", rank);
}

void FailureTable::fail(ErrorCode code, std::string_view text) {
  const base::LockGuard lock(context_.mutex());
  if (!is_whole()) return;  // the reason is known already
  add_failure({context_.self.rank, code, std::string(text.substr(0, kMaxFailureText))});
  context_.changed.notify_all();
  context_.wake_up.signal();  // the server's thread sends the frames that could not be sent at once
}

void FailureTable::report_loss(const Loss& loss) {
  const base::LockGuard lock(context_.mutex());
  add_loss(loss);
  context_.changed.notify_all();
  context_.wake_up.signal();
}

std::optional<std::uint64_t> FailureTable::calls_of_departed(int rank) const {
  if (!any_left_.load(std::memory_order_acquire)) return std::nullopt;  // acquire: as in has_left()
  const base::LockGuard lock(context_.mutex());
  const auto found = left_.find(rank);
  return found == left_.end() ? std::nullopt : std::optional(found->second.calls);
}

std::set<int> FailureTable::gone() const {
  const base::LockGuard lock(context_.mutex());
  const std::int64_t now = base::now_ns();
  std::int64_t next = now + kMaxWaitNs;
  return gone_at(now, next);
}

void FailureTable::on_trouble(std::shared_ptr<AbortFlag> flag, std::set<int> ranks) {
  const base::LockGuard lock(context_.mutex());
  trouble_flag_ = std::move(flag);
  trouble_ranks_ = std::move(ranks);
  for (const Loss& loss : losses_) set_trouble_flag(loss.rank);
  if (failure_) set_trouble_flag(failure_->rank);
}

void FailureTable::require_whole() const {
  context_.require_not_aborted();
  if (failure_) {
    // Most texts begin with a rank. Others, for example of a library that is missing, do not say where it is missing.
    const bool names_rank = failure_->rank == context_.self.rank || failure_->text.starts_with("rank");
    base::fail(failure_->code, {}, "{}: {}{}", context_.self.text(),
               names_rank ? std::string() : fmt::format("rank {} failed: ", failure_->rank), failure_->text);
  }
  if (losses_.empty()) return;
  const Loss& first = losses_.front();
  base::fail(first.code(), {}, "{}: {}", context_.self.text(), first.text());
}

std::set<int> FailureTable::gone_at(std::int64_t now, std::int64_t& next_ns) const {
  std::set<int> result;
  for (const Loss& loss : losses_) result.insert(loss.rank);
  for (const auto& [rank, departure] : left_) {
    const std::int64_t gone_ns = departure.known_ns + kAfterLeavingNs;
    if (now >= gone_ns) result.insert(rank);
    else next_ns = std::min(next_ns, gone_ns);
  }
  return result;
}

void FailureTable::add_loss(const Loss& loss) {
  if (is_lost(loss.rank)) return;
  losses_.push_back(loss);
  for (ControlConnection& one : connections_.all()) {
    if (one.role == Role::kUnknown) continue;
    send(one, loss, context_.self.nranks);
    if (one.rank == loss.rank && loss.cause != Loss::Cause::kAborted) one.closing = true;
  }
  if (loss_flag_) loss_flag_->set();
  set_trouble_flag(loss.rank);
  broken_.set();
}

// A lower rank's failure replaces a higher one's, so that all ranks report the same one.
void FailureTable::add_failure(RankFailure failure) {
  if (failure_ && failure_->rank <= failure.rank) return;
  failure_ = std::move(failure);
  for (ControlConnection& one : connections_.all()) {
    if (one.role != Role::kUnknown && !one.closing) send(one, *failure_, context_.self.nranks);
  }
  set_trouble_flag(failure_->rank);
  broken_.set();
}

// Sends the known losses and the failure to a rank that has just connected. Otherwise a rank that was declared lost
// without knowing would wait for answers until its deadline. Also, this rank may soon leave because of a loss that its
// predecessor does not know. The predecessor would then report this rank as lost.
void FailureTable::announce_to(ControlConnection& connection) const {
  for (const Loss& loss : losses_) {
    if (connection.in_ring() || loss.rank == connection.rank) send(connection, loss, context_.self.nranks);
  }
  if (connection.in_ring() && failure_) send(connection, *failure_, context_.self.nranks);
}

}  // namespace slip::transport
