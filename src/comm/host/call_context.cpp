#include "comm/host/call_context.hpp"

#include <algorithm>

namespace slip::comm {

RunningState::RunningState(int nranks, int channel_count)
    : targets(std::max<std::size_t>(static_cast<std::size_t>(nranks), 2)),
      sources(static_cast<std::size_t>(nranks)),
      scales(static_cast<std::size_t>(nranks)),
      peers(static_cast<std::size_t>(nranks)),
      channels(static_cast<std::size_t>(channel_count)),
      sent(static_cast<std::size_t>(nranks) * channels.size()),
      received(sent.size()) {}

void CallContext::throw_failure() const {
  if (host && host->failed()) throw host->why();
  if (!bootstrap.broken()) return;
  if (const std::optional<transport::RankFailure> failure = bootstrap.failures().failure())
    throw Error(failure->code, failure->text, {});
}

bool can_run(Links& links, const Primitive& step, int channel) {
  switch (step.kind) {
    case Primitive::Kind::kSend:
    case Primitive::Kind::kReceive: return !link_of(links, step, channel).full();
    case Primitive::Kind::kSent:
    case Primitive::Kind::kReceived: {
      const LinkEnd& link = link_of(links, step, channel);
      return link.begun() - link.done() <= step.value;
    }
    default: return true;
  }
}

}  // namespace slip::comm
