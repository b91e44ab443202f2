#include "callbacks.hpp"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <thread>

namespace slip::python {
namespace {

std::atomic<bool> g_closing{false};
std::atomic<int> g_inside{0};  // threads that have or wait for the GIL because of this module
std::thread::id g_exiting;     // the thread that exits; written before g_closing
thread_local int t_depth = 0;
double g_exit_seconds = 60;  // how long exit waits for running callbacks

std::vector<std::shared_ptr<void>>& kept() {
  static auto* const kKept = new std::vector<std::shared_ptr<void>>;  // under the GIL
  return *kKept;
}

struct Depth {
  Depth() { ++t_depth; }
  ~Depth() { --t_depth; }
};

// "ValueError: too small (model.py:12, in scale)": the type, the text, and the line that raised it.
std::string text_of(const py::error_already_set& error) {
  std::string text = py::str(error.type().attr("__name__")).cast<std::string>();
  const std::string message = py::str(error.value()).cast<std::string>();
  if (!message.empty()) text += ": " + message;
  py::object trace = error.trace() ? py::reinterpret_borrow<py::object>(error.trace()) : py::none();
  while (!trace.is_none() && !trace.attr("tb_next").is_none()) trace = trace.attr("tb_next");
  if (trace.is_none()) return text;
  const py::object code = trace.attr("tb_frame").attr("f_code");
  const std::string file = code.attr("co_filename").cast<std::string>();
  return text + " (" + file.substr(file.rfind('/') + 1) + ":" + py::str(trace.attr("tb_lineno")).cast<std::string>() +
         ", in " + code.attr("co_name").cast<std::string>() + ")";
}

void run_kernel(const Args& args) {
  Call* const call = args.scalar<Call*>(0);
  struct Release {
    Call* call;
    ~Release() { call->release(); }
  } const release{call};
  call->run(args);
}

void run_nothing(const Args&) {}

const Kernel& kernel_named(Name name, void (*function)(const Args&)) {
  static auto* const kKernels = new std::map<std::pair<const char*, bool>, Kernel>;  // under the GIL
  return kKernels->try_emplace({name.c_str(), function == run_kernel}, Kernel{name, function}).first->second;
}

// Waits until all callbacks have ended, before the interpreter is finalized. If a thread asks a finalized interpreter
// for the GIL, the interpreter ends the thread in the middle of C++ code.
void at_exit() {
  g_exiting = std::this_thread::get_id();
  g_closing.store(true, std::memory_order_seq_cst);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(g_exit_seconds);
  while (g_inside.load(std::memory_order_seq_cst) > 0) {
    PyThreadState* const state = PyEval_SaveThread();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PyEval_RestoreThread(state);
    const bool interrupted = PyErr_CheckSignals() != 0;
    if (!interrupted && std::chrono::steady_clock::now() < limit) continue;
    std::fprintf(stderr, "slipstream: exit while a Python function of an op still runs (%s): ended at once\n",
                 interrupted ? "interrupted" : "it did not end in time");
    std::fflush(nullptr);
    ::_exit(interrupted ? 130 : 1);
  }
}

}  // namespace

// seq_cst here and in at_exit(): this thread counts itself, then reads the flag; exit sets the flag, then reads the
// count. So at least one of the two observes the other.
Locked::Locked() {
  g_inside.fetch_add(1, std::memory_order_seq_cst);
  entered_ = !g_closing.load(std::memory_order_seq_cst);
  if (entered_) state_ = PyGILState_Ensure();
}

Locked::~Locked() {
  if (entered_) PyGILState_Release(state_);
  g_inside.fetch_sub(1, std::memory_order_seq_cst);
}

Unlocked::~Unlocked() {
  g_inside.fetch_add(1, std::memory_order_seq_cst);
  if (g_closing.load(std::memory_order_seq_cst) && g_exiting != std::this_thread::get_id()) {
    g_inside.fetch_sub(1, std::memory_order_seq_cst);
    for (;;) ::pause();
  }
  PyEval_RestoreThread(state_);
  g_inside.fetch_sub(1, std::memory_order_seq_cst);
}

bool inside_callback() { return t_depth > 0; }
bool closing() { return g_closing.load(std::memory_order_relaxed); }  // relaxed: read with the GIL, which at_exit holds

void keep_for_later(std::shared_ptr<void> handle) { kept().push_back(std::move(handle)); }

void destroy_kept() {
  if (kept().empty() || inside_callback()) return;
  std::vector<std::shared_ptr<void>> all = std::exchange(kept(), {});
  unlocked([&] { all.clear(); });
}

void Call::release() {
  // acq_rel: the accesses of all other users come before the deletion.
  if (users_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const Locked locked;
  if (!locked.entered()) return;  // exit: leaked
  const Depth depth;              // an op may still be running: handles that the function owned are kept for later
  Py_DECREF(function_);
  delete this;
}

template <class Body>
void Call::guarded(const Body& body) const {
  const Locked locked;
  if (!locked.entered()) throw Error(ErrorCode::kAborted, "the Python interpreter is exiting", {});
  const Depth depth;
  std::string text;
  try {
    body(py::reinterpret_borrow<py::object>(function_));
    return;
  } catch (py::error_already_set& error) {
    // Ctrl-C while this thread waits and runs the op itself: the wait ends with KeyboardInterrupt, see
    // wait_in_slices().
    if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
    text = text_of(error);
  }
  throw std::runtime_error(text);
}

void Call::run() const {
  guarded([](const py::object& function) { function(); });
}

void Call::run(const Args& args) const {
  guarded([&](const py::object& function) {
    py::list arguments;
    std::size_t operand = 0;
    const auto add = [&](const std::byte* data, std::size_t bytes, bool writable) {
      arguments.append(array_of(
          {find_buffer(data), const_cast<std::byte*>(data), bytes, operands_.at(operand++)->format, writable}));
    };
    for (std::size_t i = 0; i < args.reads(); ++i)
      add(args.in<std::byte>(i).data(), args.in<std::byte>(i).size(), false);
    for (std::size_t i = 0; i < args.writes(); ++i)
      add(args.out<std::byte>(i).data(), args.out<std::byte>(i).size(), true);
    for (std::size_t i = 0; i < reals_.size(); ++i) {
      if (reals_[i]) arguments.append(args.scalar<double>(i + 1));
      else arguments.append(args.scalar<std::int64_t>(i + 1));
    }
    function(*py::tuple(arguments));
  });
}

const Kernel& python_kernel(Name name) { return kernel_named(name, run_kernel); }
const Kernel& modelled_kernel(Name name) { return kernel_named(name, run_nothing); }

Call* call_of(const PlanNode& node) {
  return node.kernel && node.kernel->cpu == run_kernel ? node.scalars.at(0).as<Call*>() : nullptr;
}

void bind_callbacks(py::module_& module) {
  module.def("_at_exit", at_exit);
  module.def("_set_exit_limit", [](double seconds) { g_exit_seconds = seconds; });
  py::module_::import("atexit").attr("register")(module.attr("_at_exit"));
  // The parent's threads do not exist in a forked child, so none of them is inside a callback.
  ::pthread_atfork(nullptr, nullptr, [] { g_inside.store(0, std::memory_order_relaxed); });
}

}  // namespace slip::python
