// Which ops an engine ran, in order, and when it was busy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slip/analysis.hpp"

namespace slip {

// A time during which at least one op ran; `first` is the one that began it.
struct Stretch {
  Picos begin = 0, end = 0;
  std::uint32_t first = kNoSpan;
};

struct EngineUse {
  std::uint32_t device = 0;
  Engine engine = Engine::kNone;
  std::vector<std::uint32_t> ops;  // in the order of their starts
  std::vector<Stretch> busy;       // in order, apart from each other
  Picos sum = 0;                   // of durations
  bool serial = true;              // it never ran two at once
};

// By device, then engine; those that ran something.
std::vector<EngineUse> engine_use(std::span<const TraceSpan> spans);

// The least time in which the engine could have run its ops: one after the other if it never ran two at once, else as
// much at once, by declared width, as it ever ran. An engine that shares a link between messages runs many at once.
Picos min_time(std::span<const TraceSpan> spans, const EngineUse& use);

// By span: the op that left the engine last before this one started, if the engine had no room for both until then.
// What room there is, is seen from the trace: as much as ever ran at once, by declared width, and at least one whole
// engine. An op that started in the very instant in which another ended counts as having waited for it.
std::vector<std::uint32_t> made_room(std::span<const TraceSpan> spans, std::span<const EngineUse> engines);

// Lists of stretches, each in order and apart.
std::vector<Stretch> united(std::vector<std::vector<Stretch>> lists);
Picos shared_time(const std::vector<Stretch>& a, const std::vector<Stretch>& b);
Picos time_of(const std::vector<Stretch>& stretches);

}  // namespace slip
