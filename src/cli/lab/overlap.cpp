// Lab overlap: upload, kernel and download of data, in one piece or in chunks, on one stream or several.
#include <algorithm>

#include "cli/lab/bench.hpp"

namespace slip::cli {
namespace {

enum class Order {
  kDepthFirst,    // all three stages of a piece, then the next piece
  kBreadthFirst,  // one stage of all pieces, then the next stage
};

struct PipelineCase {
  const char* name;
  int streams;
  bool chunked;
  Order order;
  MemoryKind memory;
};

// What all cases have in common.
struct Problem {
  const Bench& bench;
  std::size_t bytes;
  std::size_t chunks;
  Picos kernel;  // for all of the data
};

// Uploads each piece of the data, runs a kernel on it, and downloads it. A piece is a chunk, or all of the data.
class Pipeline {
 public:
  Pipeline(const Problem& problem, const PipelineCase& wanted, const Device& device)
      : pieces_(wanted.chunked ? problem.chunks : 1),
        piece_bytes_(problem.bytes / pieces_),
        order_(wanted.order),
        work_(problem.bench.work(problem.kernel / static_cast<Picos>(pieces_))),
        in_(device.alloc(problem.bytes, wanted.memory, "in")),
        out_(device.alloc(problem.bytes, wanted.memory, "out")),
        data_(device.alloc(problem.bytes, MemoryKind::kDevice, "data")) {
    std::ranges::fill(in_.host_write<float>(), 3.0F);
    std::ranges::fill(out_.host_write<float>(), 0.0F);
    for (int i = 0; i < wanted.streams; ++i) streams_.push_back(device.stream(kNonBlocking));
  }

  void issue() const {
    if (order_ == Order::kDepthFirst) {
      for (std::size_t i = 0; i < pieces_; ++i) up(i), compute(i), down(i);
      return;
    }
    for (std::size_t i = 0; i < pieces_; ++i) up(i);
    for (std::size_t i = 0; i < pieces_; ++i) compute(i);
    for (std::size_t i = 0; i < pieces_; ++i) down(i);
  }

  std::vector<StreamRef> streams() const { return {streams_.begin(), streams_.end()}; }
  bool ok() const {
    return std::ranges::all_of(out_.host_read<float>(), [](float value) { return value == 7.0F; });
  }

 private:
  const Stream& stream(std::size_t i) const { return streams_[i % streams_.size()]; }
  Range part(const Buffer& buffer, std::size_t i) const { return buffer.slice(i * piece_bytes_, piece_bytes_); }

  void up(std::size_t i) const { stream(i).copy(part(data_, i), part(in_, i), "up"); }
  void compute(std::size_t i) const {
    stream(i).launch(kScale, {{part(data_, i)}, {part(data_, i)}, {work_.pace, 2.0F, 1.0F}}, work_.cost);
  }
  void down(std::size_t i) const { stream(i).copy(part(out_, i), part(data_, i), "down"); }

  std::size_t pieces_, piece_bytes_;
  Order order_;
  Work work_;
  Buffer in_, out_, data_;
  std::vector<Stream> streams_;
};

CheckedRun run_case(const Problem& problem, const PipelineCase& wanted) {
  const Device device = problem.bench.open({.compute_workers = 1});  // a kernel fills the device
  const Pipeline pipeline(problem, wanted, device);
  // A pageable copy blocks the issuing thread. If measure() held back its stream, neither would go on.
  const bool asynchronous = wanted.memory == MemoryKind::kPinned;
  const std::vector<StreamRef> held = asynchronous ? pipeline.streams() : std::vector<StreamRef>();
  Run run = problem.bench.measure(device, held, [&] { pipeline.issue(); });
  return {std::move(run), pipeline.ok()};
}

Table pipeline_table(const Problem& problem, std::span<const PipelineCase> cases, std::vector<CheckedRun>& outcomes) {
  Table table(
      fmt::format("{} up, kernels, {} down", base::format_bytes(problem.bytes), base::format_bytes(problem.bytes)),
      {"case", "time=time_ps", "faster", "overlap=overlap_percent", "exposed copy=exposed_ps",
       "device memory=peak_bytes", "result=ok", "=copy_ps", "=kernel_ps"});
  for (const PipelineCase& each : cases) {
    outcomes.push_back(run_case(problem, each));
    const auto& [run, ok] = outcomes.back();
    const Figures& figures = run.figures;
    table.row({word(each.name), time(figures.total), times(ratio(outcomes.front().run.figures.total, figures.total)),
               percent(figures.overlap_percent()), time(figures.exposed), bytes(run.peak_bytes), result(ok),
               time(figures.copy), time(figures.sum_of(Engine::kCompute))});
  }
  return table;
}

// Two copies on two streams: alone, in the same direction, and in opposite directions.
struct CopyCase {
  const char* name;
  bool first_up, has_second, second_up;  // up: from the host to the device
};

Table copy_table(const Problem& problem, std::vector<Picos>& total) {
  static constexpr CopyCase kCopyCases[] = {{"one copy up", true, false, false},
                                            {"one copy down", false, false, false},
                                            {"two up, in two streams", true, true, true},
                                            {"one up beside one down", true, true, false}};
  Table table(fmt::format("two copies of {}", base::format_bytes(problem.bytes)),
              {"case", "time=time_ps", "first done=first_ps", "second done=second_ps", "side by side=together"});
  const Device device = problem.bench.open();
  const Stream streams[] = {device.stream(kNonBlocking), device.stream(kNonBlocking)};
  const CopyMemory memory(device, problem.bytes);
  for (const CopyCase& each : kCopyCases) {
    const auto issue = [&](int i, bool up, const char* name) {
      if (up) streams[i].copy(memory.device[i], memory.host[i], name);
      else streams[i].copy(memory.host[i], memory.device[i], name);
    };
    const Run run = problem.bench.measure(device, {streams[0], streams[1]}, [&] {
      issue(0, each.first_up, "first");
      if (each.has_second) issue(1, each.second_up, "second");
    });
    const TraceSpan& first = run.span("first");
    const TraceSpan& second = each.has_second ? run.span("second") : first;
    const Picos start = std::min(first.started, second.started);
    total.push_back(run.figures.total);
    table.row({word(each.name), time(run.figures.total), time(first.ended - start),
               each.has_second ? time(second.ended - start) : none(),
               each.has_second ? yes_no(together(first, second)) : none()});
  }
  return table;
}

}  // namespace

void lab_overlap(const Bench& bench, Report& report) {
  const auto chunks = static_cast<std::size_t>(bench.options().chunks.value_or(4));
  std::size_t size = bench.bytes(bench.virtual_time() ? 32 << 20 : bench.copy_bytes());
  size = std::max<std::size_t>(size / (chunks * 64), 1) * chunks * 64;  // whole chunks
  const Problem problem{bench, size, chunks, bench.upload_time(size)};
  report.ask(fmt::format(
      "Can copies hide behind kernels? {} go to the device, through kernels that take as long as one copy ({}), and "
      "back. In one stream everything waits for everything; chunks in several streams can overlap. Look at `overlap`, "
      "the part of the copy time in which a kernel ran, and at what pageable memory does to it.",
      base::format_bytes(size), base::format_time(problem.kernel)));
  const std::string chunked = fmt::format("one stream, {} chunks", chunks), many = fmt::format("{} streams", chunks);
  const std::string depth = fmt::format("{}, depth first", many), breadth = fmt::format("{}, breadth first", many);
  const int n = static_cast<int>(chunks);
  const PipelineCase cases[] = {
      {"one stream, one piece", 1, false, Order::kDepthFirst, MemoryKind::kPinned},
      {chunked.c_str(), 1, true, Order::kDepthFirst, MemoryKind::kPinned},
      {"two streams", 2, true, Order::kDepthFirst, MemoryKind::kPinned},
      {depth.c_str(), n, true, Order::kDepthFirst, MemoryKind::kPinned},
      {breadth.c_str(), n, true, Order::kBreadthFirst, MemoryKind::kPinned},
      {"two streams, pageable", 2, true, Order::kDepthFirst, MemoryKind::kPageable},
  };
  std::vector<CheckedRun> seen;
  std::vector<Picos> copies;
  report.show(pipeline_table(problem, cases, seen));
  report.show(copy_table(problem, copies));
  const auto total = [&](std::size_t i) { return seen[i].run.figures.total; };
  const double gain = ratio(total(0), total(2));
  report.conclude(fmt::format(
      "{}. Two streams hid {} of the copy time and ran {} as fast as one; with pageable memory {} and {}. Depth-first "
      "and breadth-first issue differ by {}. Two copies in one direction took {} of one, in opposite directions {}.",
      borne_out("Copies run while kernels do, if they are in another stream",
                seen[2].run.figures.overlap_percent() > seen[0].run.figures.overlap_percent() + 10 && gain > 1.05),
      base::format_percent(seen[2].run.figures.overlap_percent()), base::format_times(gain),
      base::format_percent(seen[5].run.figures.overlap_percent()), base::format_times(ratio(total(0), total(5))),
      base::format_percent(100.0 * std::abs(ratio(total(3), total(4)) - 1.0)),
      base::format_times(ratio(copies[2], copies[0])),
      base::format_times(ratio(copies[3], std::max(copies[0], copies[1])))));
}

}  // namespace slip::cli
