// Two plans are not ordered, even if the stream of the second reuses the slot of the first one's stream.
#include <atomic>

#include "races/scenario.hpp"

namespace slip::races::program_071 {

// Launches the plan in a stream of its own and closes the stream. Waits until the plan has ended, without a sync.
void launch_and_close(Setting& s, Plan& plan, const std::atomic<int>& ended) {
  const int before = ended.load();
  {
    const Stream stream = s.device.stream(StreamFlags::kNonBlocking);
    stream.launch(plan);
  }
  for (int i = 0; i < 10'000 && ended.load() == before; ++i) {  // time goes on, also simulated time
    s.a.host([] {}, "other");
    s.a.sync();
  }
}

Plan plan_of(const Buffer& data, Name name, std::atomic<int>& ended) {
  Plan plan;
  plan.add({.kind = OpKind::kKernel,
            .engine = Engine::kCompute,
            .kernel = &test::idle_kernel(),
            .name = name,
            .writes = {data}});
  plan.add(
      {.kind = OpKind::kHost, .engine = Engine::kHost, .opaque = true, .name = "end", .host = [&ended] { ++ended; }});
  return plan;
}

void program(Setting& s) {
  const Buffer data = s.memory("data");
  std::atomic<int> ended{0};
  Plan one = plan_of(data, "first", ended), two = plan_of(data, "second", ended);
  launch_and_close(s, one, ended);
  launch_and_close(s, two, ended);
  s.device.sync();
}

const InCorpus kThis({71, "two plans in streams that were closed", program, "first", "second"});

}  // namespace slip::races::program_071
