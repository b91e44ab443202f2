// Data-parallel training: the micro-batches of a step are divided among the ranks, and the gradients are averaged while
// the backward pass runs. Without a launcher there is one rank:
//
//   slip launch -n 4 -- ./10_train --steps 300 --checkpoint train.ckpt
//   ./10_train --micro-batches 4 --steps 300       one rank, the same micro-batches, the same bits of the result
//
// It learns y = sin(u.x) + 0.5 v.x for fixed u and v. With --checkpoint FILE the training saves its state every 20
// steps, and continues from FILE if it exists. --kill R@S kills rank R in step S, to show the errors of the other
// ranks.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "slip/slip.hpp"

namespace {

constexpr std::size_t kBatch = 32, kSizes[] = {16, 128, 128, 1}, kLayers = 3;
constexpr float kRate = 0.02F;

struct Arguments {
  int steps = 200, micro_batches = 0, progress = 50, kill_rank = -1, kill_step = -1;
  std::string checkpoint;
};

Arguments read_arguments(int argc, char** argv) {
  Arguments result;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--steps") result.steps = std::atoi(value.c_str());
    else if (name == "--micro-batches") result.micro_batches = std::atoi(value.c_str());
    else if (name == "--progress") result.progress = std::max(std::atoi(value.c_str()), 1);
    else if (name == "--checkpoint") result.checkpoint = value;
    else if (name == "--kill") std::sscanf(value.c_str(), "%d@%d", &result.kill_rank, &result.kill_step);
    else
      throw std::runtime_error("unknown option " + name +
                               "; the options are --steps N, --micro-batches N, --progress STEPS, --checkpoint FILE, "
                               "--kill RANK@STEP");
  }
  return result;
}

// A pseudo-random number in [-1, 1) that depends only on its arguments.
float noise(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b * 0xbf58476d1ce4e5b9ULL + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<float>((x ^ (x >> 31)) >> 40) / 8388608.0F - 1.0F;
}

// A matrix in row-major order, or its transpose.
enum class Layout { kRowMajor, kTransposed };
struct Matrix {
  const float* data;
  std::size_t stride;  // floats from one row in memory to the next
  Layout layout = Layout::kRowMajor;
};

// c = a * b. `a` has `inner` columns; c is contiguous in row-major order.
void multiply(std::size_t rows, std::size_t columns, std::size_t inner, Matrix a, Matrix b, float* c) {
  const auto at = [](const Matrix& of, std::size_t row, std::size_t column) {
    return of.data[of.layout == Layout::kRowMajor ? row * of.stride + column : column * of.stride + row];
  };
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      float sum = 0;
      for (std::size_t i = 0; i < inner; ++i) sum += at(a, row, i) * at(b, i, column);
      c[row * columns + column] = sum;
    }
  }
}

// y = tanh(x W^T + b), without tanh in the last layer. Scalars: number of inputs, number of outputs, whether it is the
// last layer.
const slip::Kernel kForward{"forward", [](const slip::Args& args) {
                              const auto x = args.in<float>(0), w = args.in<float>(1), b = args.in<float>(2);
                              const auto y = args.out<float>(0);
                              const auto in = args.scalar<std::size_t>(0), out = args.scalar<std::size_t>(1);
                              multiply(kBatch, out, in, {x.data(), in}, {w.data(), in, Layout::kTransposed}, y.data());
                              for (std::size_t i = 0; i < kBatch * out; ++i) {
                                const float sum = y[i] + b[i % out];
                                y[i] = args.scalar<int>(2) != 0 ? sum : std::tanh(sum);
                              }
                            }};

// The gradient of the loss by y, and the loss (the mean squared error), added to that of earlier micro-batches. Scalar:
// whether it is the first micro-batch.
const slip::Kernel kLoss{"loss", [](const slip::Args& args) {
                           const auto y = args.in<float>(0), target = args.in<float>(1);
                           const auto d = args.out<float>(0), loss = args.out<float>(1);
                           float sum = 0;
                           for (std::size_t n = 0; n < kBatch; ++n) {
                             const float off = y[n] - target[n];
                             d[n] = 2 * off / kBatch;
                             sum += off * off / kBatch;
                           }
                           loss[0] = args.scalar<int>(0) != 0 ? sum : loss[0] + sum;
                         }};

// Reads x, y, dy, W; writes dW, db, dx, the gradient before tanh, and dW of this micro-batch alone. The gradient of a
// micro-batch is computed completely before it is added to earlier ones. The sum over ranks has the same order, so the
// bits are equal. Scalars: number of inputs, number of outputs, whether it is the last layer, whether it is the first
// micro-batch.
const slip::Kernel kBackward{"backward", [](const slip::Args& args) {
                               const auto x = args.in<float>(0), y = args.in<float>(1), dy = args.in<float>(2),
                                          w = args.in<float>(3);
                               const auto dw = args.out<float>(0), db = args.out<float>(1), dx = args.out<float>(2),
                                          slope = args.out<float>(3), own = args.out<float>(4);
                               const auto in = args.scalar<std::size_t>(0), out = args.scalar<std::size_t>(1);
                               const bool last = args.scalar<int>(2) != 0, first = args.scalar<int>(3) != 0;
                               for (std::size_t i = 0; i < kBatch * out; ++i)
                                 slope[i] = last ? dy[i] : dy[i] * (1 - y[i] * y[i]);
                               for (std::size_t o = 0; o < out; ++o) {
                                 float bias = 0;
                                 for (std::size_t n = 0; n < kBatch; ++n) bias += slope[n * out + o];
                                 db[o] = first ? bias : db[o] + bias;
                               }
                               multiply(out, in, kBatch, {slope.data(), out, Layout::kTransposed}, {x.data(), in},
                                        first ? dw.data() : own.data());
                               for (std::size_t i = 0; !first && i < out * in; ++i) dw[i] += own[i];
                               multiply(kBatch, in, out, {slope.data(), out}, {w.data(), in}, dx.data());
                             }};

const slip::Kernel kDivide{"divide", [](const slip::Args& args) {
                             for (float& one : args.out<float>(0)) one /= args.scalar<float>(0);
                           }};
const slip::Kernel kDescend{"descend", [](const slip::Args& args) {
                              const auto gradient = args.in<float>(0);
                              const auto parameter = args.out<float>(0);
                              for (std::size_t i = 0; i < parameter.size(); ++i) parameter[i] -= kRate * gradient[i];
                            }};

class Training {
 public:
  Training(const Arguments& arguments)
      : arguments_(arguments),
        device_(slip::Device::open("cpu")),
        comm_(slip::Communicator::init(device_, options())),
        compute_(device_.stream(slip::StreamFlags::kNonBlocking)),
        gradients_(comm_, device_, {.measure = true}),
        micro_batches_(arguments.micro_batches > 0 ? arguments.micro_batches : comm_.nranks()) {
    if (micro_batches_ % comm_.nranks() != 0)
      throw std::runtime_error(std::to_string(micro_batches_) + " micro-batches cannot be divided equally among " +
                               std::to_string(comm_.nranks()) + " ranks");
    const auto alloc = [&](std::size_t floats) { return device_.alloc(floats * 4, slip::MemoryKind::kPinned); };
    for (std::size_t k = 0; k < kLayers; ++k) {
      for (const std::size_t count : {kSizes[k] * kSizes[k + 1], kSizes[k + 1]}) {
        ids_.push_back(gradients_.add((ids_.size() % 2 == 0 ? "weight" : "bias") + std::to_string(k), count * 4,
                                      slip::DataType::kF32));
        parameters_.push_back(alloc(count));
        const auto values = parameters_.back().host_write<float>();
        for (std::size_t i = 0; i < count; ++i)
          values[i] = ids_.size() % 2 == 1 ? noise(ids_.size(), i) / std::sqrt(static_cast<float>(kSizes[k])) : 0;
      }
    }
    for (const std::size_t size : kSizes) {
      activations_.push_back(alloc(kBatch * size));
      slopes_.push_back(alloc(kBatch * size));
    }
    const std::size_t widest = *std::max_element(std::begin(kSizes), std::end(kSizes));
    slope_ = alloc(kBatch * widest);
    own_ = alloc(widest * widest);
    target_ = alloc(kBatch);
    loss_ = alloc(1);
    gradients_.seal();
    resume();
  }

  void run() {
    if (comm_.rank() == 0) std::printf("%d ranks, %d micro-batches a step\n", comm_.nranks(), micro_batches_);
    for (int step = first_step_; step < arguments_.steps; ++step) {
      if (comm_.rank() == arguments_.kill_rank && step == arguments_.kill_step) std::raise(SIGKILL);
      const float loss = run_step(step);
      if (step % arguments_.progress == 0 || step + 1 == arguments_.steps) show_progress(step, loss);
      if (!arguments_.checkpoint.empty() && (step + 1) % 20 == 0) save(step + 1);
    }
    show_end();
    comm_.finalize();
  }

 private:
  static slip::CommunicatorOptions options() {
    slip::CommunicatorOptions options;
    options.deterministic = true;
    options.timeout = std::chrono::seconds(30);
    return options;
  }

  // The times are those of the previous step, the last one whose end is known.
  void show_progress(int step, float loss) const {
    if (comm_.rank() != 0) return;
    const std::optional<slip::GradientReport> report = gradients_.report();
    std::printf("step %d loss %.9g%s%s\n", step, loss, report ? "; " : "", report ? report->line().c_str() : "");
    std::fflush(stdout);
  }

  void show_end() const {
    if (comm_.rank() != 0) return;
    const std::optional<slip::GradientReport> report = gradients_.report();
    if (report) std::printf("%s", report->text().c_str());
    if (report && !gradients_.profile().gradients.empty()) {
      const slip::GradientReport predicted =
          slip::predict_report(gradients_.profile(), gradients_.cost(), gradients_.plan());
      std::printf("%s", slip::compare_steps(predicted, *report).text(3).c_str());
    }
    std::printf("parameters %016llx\n", static_cast<unsigned long long>(digest()));
  }

  float run_step(int step) {
    const int own = micro_batches_ / comm_.nranks();
    for (int i = 0; i < own; ++i) {
      compute_.sync();  // the input is written by the host
      make_batch(step, comm_.rank() * own + i);
      forward(i == 0);
      backward(i == 0, i + 1 == own ? own : 0);
      if (i + 1 < own) continue;
      for (std::size_t p = 0; p < ids_.size(); ++p) {
        gradients_.wait(ids_[p], compute_);
        compute_.launch(kDescend, {.reads = {gradients_.view(ids_[p]), parameters_[p]}, .writes = {parameters_[p]}});
      }
      gradients_.step_end();
    }
    if (own > 1) compute_.launch(kDivide, {.reads = {loss_}, .writes = {loss_}, .scalars = {static_cast<float>(own)}});
    comm_.all_reduce(loss_, loss_, slip::DataType::kF32, slip::ReduceOp::kAvg, compute_);
    compute_.sync();
    return loss_.host_read<float>()[0];
  }

  void make_batch(int step, int micro_batch) {
    const auto x = activations_[0].host_write<float>();
    const auto target = target_.host_write<float>();
    const std::uint64_t batch = static_cast<std::uint64_t>(step) * 1000 + static_cast<std::uint64_t>(micro_batch);
    for (std::size_t n = 0; n < kBatch; ++n) {
      float u = 0, v = 0;
      for (std::size_t i = 0; i < kSizes[0]; ++i) {
        x[n * kSizes[0] + i] = noise(batch + 17, n * kSizes[0] + i);
        u += noise(3, i) * x[n * kSizes[0] + i];
        v += noise(5, i) * x[n * kSizes[0] + i];
      }
      target[n] = std::sin(u) + 0.5F * v;
    }
  }

  void forward(bool first) {
    for (std::size_t k = 0; k < kLayers; ++k)
      compute_.launch(kForward, {.reads = {activations_[k], parameters_[2 * k], parameters_[2 * k + 1]},
                                 .writes = {activations_[k + 1]},
                                 .scalars = {kSizes[k], kSizes[k + 1], k + 1 == kLayers ? 1 : 0}});
    compute_.launch(kLoss, {.reads = {activations_[kLayers], target_, loss_},
                            .writes = {slopes_[kLayers], loss_},
                            .scalars = {first ? 1 : 0}});
  }

  // `divisor`: in the last micro-batch of the step, the number of this rank's micro-batches; the gradients are then
  // divided by it and ready. 0 in the other micro-batches.
  void backward(bool first, int divisor) {
    for (std::size_t k = kLayers; k-- > 0;) {
      const slip::Range dw = gradients_.view(ids_[2 * k]), db = gradients_.view(ids_[2 * k + 1]);
      compute_.launch(kBackward,
                      {.reads = {activations_[k], activations_[k + 1], slopes_[k + 1], parameters_[2 * k], dw, db},
                       .writes = {dw, db, slopes_[k], slope_, own_},
                       .scalars = {kSizes[k], kSizes[k + 1], k + 1 == kLayers ? 1 : 0, first ? 1 : 0}});
      if (divisor == 0) continue;
      for (const std::size_t p : {2 * k + 1, 2 * k}) {
        const slip::Range gradient = gradients_.view(ids_[p]);
        if (divisor > 1)
          compute_.launch(kDivide,
                          {.reads = {gradient}, .writes = {gradient}, .scalars = {static_cast<float>(divisor)}});
        gradients_.ready(ids_[p], compute_);
      }
    }
  }

  // Rank 0 saves, because all ranks have the same parameters. It writes a new file and renames it, so that the old file
  // is replaced atomically.
  void save(int step) const {
    if (comm_.rank() != 0) return;
    const std::string beside = arguments_.checkpoint + ".new";
    {
      std::ofstream file(beside, std::ios::binary);
      file.write(reinterpret_cast<const char*>(&step), sizeof(step));
      for (const slip::Buffer& one : parameters_)
        file.write(reinterpret_cast<const char*>(one.host_read<char>().begin()),
                   static_cast<std::streamsize>(one.bytes()));
      if (!file.flush()) throw std::runtime_error("cannot write " + beside);
    }
    if (std::rename(beside.c_str(), arguments_.checkpoint.c_str()) != 0)
      throw std::runtime_error("cannot rename " + beside);
  }

  void resume() {
    std::ifstream file(arguments_.checkpoint, std::ios::binary);
    if (arguments_.checkpoint.empty() || !file) return;
    file.read(reinterpret_cast<char*>(&first_step_), sizeof(first_step_));
    for (slip::Buffer& one : parameters_)
      file.read(one.host_write<char>().begin(), static_cast<std::streamsize>(one.bytes()));
    if (!file) throw std::runtime_error(arguments_.checkpoint + " is cut short");
    if (comm_.rank() == 0) std::printf("goes on at step %d\n", first_step_);
  }

  std::uint64_t digest() const {
    std::uint64_t hash = 1469598103934665603ULL;
    for (const slip::Buffer& one : parameters_) {
      for (const unsigned char byte : one.host_read<unsigned char>()) hash = (hash ^ byte) * 1099511628211ULL;
    }
    return hash;
  }

  const Arguments arguments_;
  slip::Device device_;
  slip::Communicator comm_;
  slip::Stream compute_;
  slip::Gradients gradients_;
  int micro_batches_, first_step_ = 0;
  std::vector<slip::ParameterId> ids_;  // a weight and a bias for each layer
  std::vector<slip::Buffer> parameters_, activations_, slopes_;
  slip::Buffer slope_, own_, target_, loss_;
};

}  // namespace

int main(int argc, char** argv) try {
  // If a rank fails, the launcher sends SIGTERM to the others. They ignore it: their next call fails anyway, and they
  // print the error.
  std::signal(SIGTERM, SIG_IGN);
  Training(read_arguments(argc, argv)).run();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "training stopped: %s\n", error.what());
  return 1;
}
