#include "runtime/capture.hpp"

#include <algorithm>
#include <utility>

#include "base/fail.hpp"
#include "base/thread.hpp"

namespace slip::runtime {
namespace {

struct Registry {
  base::ForkMutex mutex;
  std::unordered_map<std::uint64_t, std::shared_ptr<Capture>> captures SLIP_GUARDED_BY(mutex);
  std::uint64_t last_id SLIP_GUARDED_BY(mutex) = 0;
};

void forget_captures();
Registry& registry() { return base::process_wide<Registry, forget_captures>(); }

// A child of fork() leaks the captures of the parent: a thread of the parent may have held their locks, so they cannot
// be destroyed.
void forget_captures() SLIP_NO_THREAD_SAFETY_ANALYSIS {  // the child has one thread
  new std::unordered_map(std::exchange(registry().captures, {}));
}

}  // namespace

Capture::Capture(StreamState& origin, std::uint64_t id) : id_(id), origin_(origin), thread_(base::thread_index()) {}

void Capture::begin(StreamState& origin, Here here) {
  if (origin.legacy)
    throw Error(ErrorCode::kCaptureUnsupported, "the legacy stream cannot be captured (rule 96)", here);
  if (origin.capture.load(std::memory_order_acquire))
    base::fail(ErrorCode::kInvalidValue, here, "{} is already capturing", stream_text(origin));
  Registry& all = registry();
  const base::LockGuard lock(all.mutex);
  const std::uint64_t id = ++all.last_id;
  std::shared_ptr<Capture> capture(new Capture(origin, id));
  {
    const base::LockGuard own(capture->mutex_);
    capture->branch(origin);
  }
  all.captures.emplace(id, std::move(capture));
}

std::shared_ptr<Capture> Capture::find(std::uint64_t id) {
  Registry& all = registry();
  const base::LockGuard lock(all.mutex);
  const auto found = all.captures.find(id);
  return found == all.captures.end() ? nullptr : found->second;
}

// Another thread may end the capture, and destroy it, at any time. It first removes the capture from the registry.
std::shared_ptr<Capture> Capture::of(const StreamState& stream) {
  if (!stream.capture.load(std::memory_order_relaxed)) return nullptr;  // relaxed: the pointer is not followed
  Registry& all = registry();
  const base::LockGuard lock(all.mutex);
  const Capture* const current = stream.capture.load(std::memory_order_relaxed);  // as above
  for (const auto& [id, capture] : all.captures) {
    if (capture.get() == current) return capture;
  }
  return nullptr;
}

Capture::Branch& Capture::branch(StreamState& stream) {
  const auto [entry, is_new] = branches_.try_emplace(&stream);
  if (is_new) {
    entry->second.index = static_cast<std::uint32_t>(streams_.size());
    streams_.push_back({stream.core, stream.label.name_of(stream.last_id)});
    stream.core->captures.all.fetch_add(1, std::memory_order_relaxed);
    if (stream.blocking()) stream.core->captures.blocking.fetch_add(1, std::memory_order_relaxed);
    // release: a thread that reads the pointer observes the constructed capture.
    stream.capture.store(this, std::memory_order_release);
  }
  return entry->second;
}

void Capture::add(StreamState& stream, const Op& op, std::shared_ptr<const ExchangeSource> exchange) {
  const base::LockGuard lock(mutex_);
  if (invalid_) throw Error(ErrorCode::kCaptureInvalidated, invalid_, op.here);
  Branch& own = branch(stream);
  PlanNode node{.stream = own.index,
                .kind = op.kind,
                .engine = op.engine,
                .opaque = op.opaque,
                .value = op.value,
                .kernel = op.kernel,
                .name = op.name,
                .here = op.here,
                .reads = {op.reads.begin(), op.reads.end()},
                .writes = {op.writes.begin(), op.writes.end()},
                // Not in braces, which would mean a list of two pointers.
                .scalars = std::vector<Scalar>(op.scalars.begin(), op.scalars.end()),
                .cost = op.cost,
                .host = op.host ? std::move(*op.host) : std::function<void()>(),
                .exchange = std::move(exchange),
                .waits = {}};
  for (const std::uint32_t before : own.last) {
    if (nodes_[before].stream != own.index) node.waits.push_back(before);  // ops of its own stream are ordered anyway
  }
  nodes_.push_back(std::move(node));
  own.last = {static_cast<std::uint32_t>(nodes_.size() - 1)};
}

void Capture::wait(StreamState& stream, std::uint64_t mark_number) {
  const base::LockGuard lock(mutex_);
  Frontier& last = branch(stream).last;
  for (const std::uint32_t node : marks_.at(mark_number)) {
    if (std::ranges::find(last, node) == last.end()) last.push_back(node);
  }
}

void Capture::invalidate_all(const DeviceCore& core, Reach reach, const char* why) {
  const auto reached = [&](const auto& branch) {
    const StreamState& stream = *branch.first;
    return stream.core == &core && (reach == Reach::kDevice || stream.blocking());
  };
  Registry& all = registry();
  const base::LockGuard lock(all.mutex);
  for (const auto& [id, capture] : all.captures) {
    Capture& each = *capture;
    const base::LockGuard own(each.mutex_);
    if (!each.invalid_ && std::ranges::any_of(each.branches_, reached)) each.invalid_ = why;
  }
}

// Returns whether every op is one of `ends` or is ordered before one of them.
bool Capture::joined(const Frontier& ends) const {
  std::vector<char> seen(nodes_.size(), 0);
  for (const std::uint32_t node : ends) seen[node] = 1;
  // Walks backwards: an op is covered by a later op of its stream, or by an op that waits for it.
  std::vector<char> stream_seen(streams_.size(), 0);
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    if (!seen[i] && !stream_seen[nodes_[i].stream]) return false;
    stream_seen[nodes_[i].stream] = 1;
    for (const std::uint32_t before : nodes_[i].waits) seen[before] = 1;
  }
  return true;
}

void Capture::release(StreamState& stream) {
  stream.core->captures.all.fetch_sub(1, std::memory_order_relaxed);
  if (stream.blocking()) stream.core->captures.blocking.fetch_sub(1, std::memory_order_relaxed);
  stream.capture.store(nullptr, std::memory_order_release);
}

void Capture::forget(StreamState& stream) noexcept {
  const std::shared_ptr<Capture> capture = of(stream);
  if (!capture) return;
  if (&capture->origin_ == &stream) {
    const base::LockGuard lock(registry().mutex);
    registry().captures.erase(capture->id_);
  }
  const base::LockGuard lock(capture->mutex_);
  if (stream.capture.load(std::memory_order_relaxed) != capture.get()) return;  // ended meanwhile, and released
  if (&capture->origin_ == &stream) return capture->release_streams();
  if (!capture->invalid_) capture->invalid_ = "a stream of it was destroyed";
  capture->branches_.erase(&stream);
  release(stream);
}

void Capture::forget_all(const DeviceCore& core) noexcept {
  if (core.captures.all.load(std::memory_order_relaxed) == 0) return;  // relaxed: no thread uses the device any more
  std::vector<std::shared_ptr<Capture>> ended;  // destroyed without the lock: captured functions may own buffers
  Registry& all = registry();
  const base::LockGuard lock(all.mutex);
  std::erase_if(all.captures, [&](const auto& entry) {
    Capture& capture = *entry.second;
    const base::LockGuard own(capture.mutex_);
    if (capture.origin_.core == &core) {
      capture.release_streams();
      ended.push_back(entry.second);
      return true;
    }
    const std::size_t left = std::erase_if(capture.branches_, [&](const auto& branch) {
      if (branch.first->core != &core) return false;
      release(*branch.first);
      return true;
    });
    if (left > 0 && !capture.invalid_) capture.invalid_ = "a device of it was closed";
    return false;
  });
}

Capture::Result Capture::end(StreamState& origin, Here here) {
  const std::shared_ptr<Capture> capture = of(origin);
  if (!capture) base::fail(ErrorCode::kInvalidValue, here, "{} is not capturing", stream_text(origin));
  if (&capture->origin_ != &origin)
    base::fail(ErrorCode::kCaptureUnmatched, here, "{} joined a capture that began on {}: end it there",
               stream_text(origin), stream_text(capture->origin_));
  if (capture->thread_ != base::thread_index())
    base::fail(ErrorCode::kCaptureWrongThread, here, "thread {} began the capture and must end it; thread {} tried",
               capture->thread_, base::thread_index());
  {
    const base::LockGuard lock(registry().mutex);
    registry().captures.erase(capture->id_);
  }
  const base::LockGuard lock(capture->mutex_);
  capture->release_streams();
  if (capture->invalid_) throw Error(ErrorCode::kCaptureInvalidated, capture->invalid_, here);
  if (!capture->joined(capture->branches_.at(&origin).last))
    throw Error(ErrorCode::kCaptureUnjoined,
                "a forked stream has work that the origin stream did not wait for: record an event there, and let the "
                "origin wait",
                here);
  return {std::move(capture->nodes_), std::move(capture->streams_)};
}

}  // namespace slip::runtime
