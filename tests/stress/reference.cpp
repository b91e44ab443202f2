// The sequential reference, and comparing with it.
#include <fmt/format.h>

#include <algorithm>

#include "stress/program.hpp"

namespace slip::stress {
namespace {

std::uint32_t mixed(std::uint32_t state, std::uint32_t value) {
  state = (state ^ value) * 0x9e3779b1u;
  return state ^ (state >> 15);
}

class Interpreter {
 public:
  explicit Interpreter(const Program& program) : program_(program) {
    result_.seen.resize(program.steps.size());
    for (std::size_t b = 0; b < program.buffers.size(); ++b) {
      auto& words = result_.buffers.emplace_back();
      if (program.buffers[b].dynamic) continue;
      for (int i = 0; i < kPages * kPageWords; ++i) words.push_back(initial_word(static_cast<int>(b), i));
    }
  }

  Result run() {
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      if (step.kind == Kind::kHostRead) {
        const Words words = of(step.reads[0]);
        result_.seen[i] = digest(words.data, words.count);
      } else {
        perform(step);
      }
    }
    return std::move(result_);
  }

 private:
  Words of(const Span& span) {
    auto& words = result_.buffers[static_cast<std::size_t>(span.buffer)];
    return {words.data() + span.page * kPageWords, static_cast<std::size_t>(span.pages * kPageWords)};
  }
  std::vector<Words> all(const std::vector<Span>& spans) {
    std::vector<Words> words;
    for (const Span& span : spans) words.push_back(of(span));
    return words;
  }

  void perform(const Step& step) {
    switch (step.kind) {
      case Kind::kKernel:
      case Kind::kHostFunction:
      case Kind::kHostWrite: mix_words(all(step.writes), all(step.reads), step.value); break;
      case Kind::kCopy: {
        const Words from = of(step.reads[0]), to = of(step.writes[0]);
        std::copy_n(from.data, from.count, to.data);
        break;
      }
      case Kind::kFill: {
        const Words to = of(step.writes[0]);
        std::fill_n(to.data, to.count, (step.value & 0xff) * 0x01010101u);
        break;
      }
      case Kind::kAlloc: result_.buffers[buffer(step)].assign(kPages * kPageWords, 0); break;
      case Kind::kFree: result_.buffers[buffer(step)].clear(); break;
      case Kind::kLaunch:
        for (const Step& node : program_.plans[static_cast<std::size_t>(step.plan)].nodes) perform(node);
        break;
      default: break;
    }
  }
  static std::size_t buffer(const Step& step) { return static_cast<std::size_t>(step.writes[0].buffer); }

  const Program& program_;
  Result result_;
};

const char* kind_text(Kind kind) {
  static constexpr const char* kNames[] = {"open",          "destroy",   "kernel",      "copy",        "fill",
                                           "host function", "alloc",     "free",        "launch plan", "record",
                                           "wait",          "query",     "query event", "sync",        "sync event",
                                           "sync device",   "host read", "host write",  "publish",     "take"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string spans_text(const char* name, const std::vector<Span>& spans) {
  std::string text;
  for (const Span& span : spans) text += fmt::format(" {} b{}[{}+{}]", name, span.buffer, span.page, span.pages);
  return text;
}

std::string step_text(const Step& step) {
  std::string text = fmt::format("t{} {:<13}", step.thread, kind_text(step.kind));
  if (step.stream >= 0) text += fmt::format(" s{}", step.stream);
  if (step.device >= 0) text += fmt::format(" device {}", step.device);
  if (step.event >= 0) text += fmt::format(" e{}", step.event);
  if (step.plan >= 0) text += fmt::format(" p{}", step.plan);
  if (step.handoff >= 0) text += fmt::format(" h{}", step.handoff);
  text += spans_text("<-", step.reads) + spans_text("->", step.writes);
  if (step.value != 0) text += fmt::format(" value {}", step.value);
  return text + (step.edge ? "  (needed)\n" : "\n");
}

}  // namespace

void mix_words(const std::vector<Words>& out, const std::vector<Words>& in, std::uint32_t value) {
  for (const Words& to : out) {
    for (std::size_t i = 0; i < to.count; ++i) {
      std::uint32_t word = mixed(to.data[i], value);
      for (const Words& from : in) word = mixed(word, from.data[i % from.count]);
      to.data[i] = word;
    }
  }
}

std::uint32_t digest(const std::uint32_t* data, std::size_t count) {
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < count; ++i) state = mixed(state, data[i]);
  return state;
}

std::uint32_t initial_word(int buffer, int index) {
  return mixed(static_cast<std::uint32_t>(buffer + 1), static_cast<std::uint32_t>(index + 1));
}

Result reference(const Program& program) { return Interpreter(program).run(); }

std::string difference(const Program& program, const Result& expected, const Result& actual) {
  if (!actual.error.empty()) return actual.error;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    if (expected.seen[i] != actual.seen[i])
      return fmt::format("step {}: the host read {:08x}, expected {:08x}", i, actual.seen[i], expected.seen[i]);
  }
  for (std::size_t b = 0; b < expected.buffers.size(); ++b) {
    for (std::size_t i = 0; i < expected.buffers[b].size(); ++i) {
      const std::uint32_t want = expected.buffers[b][i], got = actual.buffers[b][i];
      if (want == got) continue;
      const int byte = __builtin_ctz(want ^ got) / 8;
      return fmt::format("buffer {} differs first at byte {} (page {}): {:08x}, expected {:08x}", b,
                         i * 4 + static_cast<std::size_t>(byte), i / kPageWords, got, want);
    }
  }
  return "";
}

std::string Program::listing() const {
  std::string text = fmt::format("program of seed {}: {} devices, {} threads\n", seed, devices, threads);
  for (std::size_t s = 0; s < streams.size(); ++s) {
    const StreamSpec& stream = streams[s];
    const char* form = stream.form == StreamSpec::Form::kLegacy      ? "legacy"
                       : stream.form == StreamSpec::Form::kPerThread ? "per-thread"
                       : stream.blocking()                           ? "blocking"
                                                                     : "non-blocking";
    text += fmt::format("  s{}: {}, device {}, thread {}, priority {}\n", s, form, stream.device, stream.thread,
                        stream.priority);
  }
  for (std::size_t b = 0; b < buffers.size(); ++b)
    text += fmt::format("  b{}: {}, device {}{}\n", b, memory_kind_name(buffers[b].kind), buffers[b].device,
                        buffers[b].dynamic ? ", in stream order" : "");
  for (std::size_t p = 0; p < plans.size(); ++p) {
    text += fmt::format("  p{}: device {}\n", p, plans[p].device);
    for (const Step& node : plans[p].nodes) text += "       " + step_text(node);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) text += fmt::format("{:>5} {}", i, step_text(steps[i]));
  return text;
}

}  // namespace slip::stress
