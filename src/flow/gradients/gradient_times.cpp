#include "flow/gradients/gradient_times.hpp"

#include <algorithm>

namespace slip {
namespace {

Needs::Chain& chain_of(const GradientTimes& times, const GradientTimes::Wait& wait, Needs& needs) {
  const auto known = std::find_if(needs.chains.begin(), needs.chains.end(),
                                  [&](const Needs::Chain& one) { return one.stream == wait.stream; });
  if (known != needs.chains.end()) return *known;
  Picos last_gradient = -1;
  for (std::size_t i = 0; i < times.arrivals.size(); ++i) {
    if (times.sources[i] == wait.stream) last_gradient = std::max(last_gradient, times.arrivals[i]);
  }
  return needs.chains.emplace_back(Needs::Chain{wait.stream, last_gradient, wait.reached, wait.reached, 0});
}

void need(Needs& needs, std::size_t parameter, Picos due) {
  Picos& needed = needs.needed[parameter];
  needed = needs.known[parameter] ? std::min(needed, due) : due;
  needs.known[parameter] = 1;
}

}  // namespace

// Each stream takes its waits one after the other; what lies between two of them is work that is there anyway.
void find_needs(const GradientTimes& times, Needs& needs) {
  needs.backward_end = needs.exposed = 0;
  needs.whose = 0;
  for (const Picos arrival : times.arrivals) needs.backward_end = std::max(needs.backward_end, arrival);
  needs.needed.assign(times.arrivals.size(), needs.backward_end);
  needs.known.assign(times.arrivals.size(), 0);
  needs.stalls.clear();
  needs.chains.clear();
  Picos last = needs.backward_end;
  for (const GradientTimes::Wait& wait : times.waits) {
    Needs::Chain& chain = chain_of(times, wait, needs);
    const Picos went_on = std::min(wait.left, std::max(wait.reached, times.ends[wait.call]));
    chain.due = std::max(chain.due + (wait.reached - chain.left), needs.backward_end);
    chain.left = went_on;
    const bool in_backward = wait.reached < chain.last_gradient;
    const Picos from = in_backward ? wait.reached : std::max(wait.reached, needs.backward_end);
    needs.stalls.push_back({from, std::max<Picos>(0, went_on - from)});
    chain.stood += needs.stalls.back().time;
    if (wait.parameter == GradientTimes::kAll) {
      for (std::size_t i = 0; i < needs.needed.size(); ++i) need(needs, i, chain.due);
    } else {
      need(needs, wait.parameter, chain.due);
    }
    last = std::max(last, chain.due);
    if (chain.stood > needs.exposed) needs.exposed = chain.stood, needs.whose = chain.stream;
  }
  for (std::size_t i = 0; i < needs.known.size(); ++i) {
    if (!needs.known[i]) needs.needed[i] = last;
  }
}

}  // namespace slip
