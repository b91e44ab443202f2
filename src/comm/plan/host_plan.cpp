#include "comm/plan/host_plan.hpp"

namespace slip {

HostPlan::HostPlan(const Call& call, std::uint64_t number, std::uint64_t chunks_before, int rank, int nranks)
    : call_(call),
      rank_(rank),
      asks_(asks(call, nranks)),
      shared_(call, number, chunks_before, rank, nranks),
      direct_(call, rank, nranks),
      path_(asks_ ? Path::kOpen : Path::kStaged) {}

bool HostPlan::asks(const Call& call, int nranks) {
  return call.kind != Collective::kBarrier && !SharedPlan::is_small(call, nranks);
}

void HostPlan::choose(bool any_private, bool any_offered) {
  path_ = !any_private ? Path::kDirect : any_offered ? Path::kLate : Path::kStaged;
}

std::uint64_t HostPlan::pieces() const {
  switch (path_) {
    case Path::kDirect: return 2;
    case Path::kLate: return shared_.pieces() + 1;
    case Path::kOpen:
    case Path::kStaged: break;
  }
  return shared_.pieces();
}

std::uint64_t HostPlan::phases() const {
  switch (path_) {
    case Path::kDirect: return DirectPlan::kOutside;
    case Path::kLate: return shared_.phases() + 1;
    case Path::kOpen:
    case Path::kStaged: break;
  }
  return shared_.phases();
}

void HostPlan::write(std::uint64_t piece, Program& program) const {
  if (piece == 0) {
    if (!asks_ || own_ == PeerAccess::kUnreachable) return shared_.write(0, program);
    program.room(SharedLayout::kTurns - 1);
    program.post();
    if (!DirectPlan::from_root(call_.kind)) program.meet();
    else if (rank_ != call_.root) program.meet(static_cast<std::uint64_t>(call_.root));
    return;
  }
  if (path_ == Path::kDirect) return direct_.write(program);
  if (path_ == Path::kLate && piece == 1) {
    if (own_ != PeerAccess::kUnreachable) shared_.copy_in(0, program);
    program.signal(1);
    return program.wait(1);
  }
  // Who has met the root alone.
  if (asks_ && piece == 1 && call_.kind == Collective::kScatter && own_ != PeerAccess::kUnreachable) program.meet();
  if (path_ == Path::kStaged) return shared_.write(piece, program);
  const std::size_t begin = program.steps.size();
  shared_.write(piece - 1, program);
  for (std::size_t i = begin; i < program.steps.size(); ++i) {  // one phase is behind it
    Primitive& step = program.steps[i];
    if (step.kind == Primitive::Kind::kSignal || step.kind == Primitive::Kind::kWait) ++step.value;
  }
}

}  // namespace slip
