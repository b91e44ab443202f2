// The C++ side of Python's Device, Buffer, Range, Stream, Event and Plan.
//
// The GIL. Every call of the library is made without the GIL (`unlocked`): the library may run a Python callback in the
// calling thread or in another one, under its own locks, and the callback takes the GIL. The fields of these objects
// are read and written with the GIL held.
//
// Destruction. Freeing memory and closing devices waits for work. `retire` destroys a handle without the GIL. Inside a
// callback it keeps the handle until a call outside of callbacks, because a thread cannot wait for itself. When the
// interpreter exits, handles are leaked: exit discards the work that has not started.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "slip/slip.hpp"

namespace slip::python {

namespace py = pybind11;

// Takes the GIL in any thread. While one exists, the interpreter does not exit. entered() is false, and the GIL was not
// taken, if it is exiting already.
class Locked {
 public:
  Locked();
  ~Locked();
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  bool entered() const { return entered_; }

 private:
  bool entered_ = false;
  PyGILState_STATE state_{};
};

// Releases the GIL, and takes it again in the destructor. If the interpreter exits meanwhile, the thread stops for ever
// instead. Python 3.14 does the same; older interpreters would end the thread in the middle of C++ code.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* const state_;
};

template <class Function>
auto unlocked(Function&& function) {
  const Unlocked released;
  return function();
}

// The position of the Python code that called, outside of this package.
Here caller();

bool inside_callback();  // this thread runs a Python callback of an op
bool closing();          // the interpreter exits
void keep_for_later(std::shared_ptr<void> handle);
void destroy_kept();  // destroys the handles of keep_for_later(); functions that may wait call it

template <class Handle>
void retire(std::optional<Handle>& handle) {
  if (!handle) return;
  auto last = std::make_unique<Handle>(std::move(*handle));
  handle.reset();
  if (closing()) static_cast<void>(last.release());
  else if (inside_callback()) keep_for_later(std::shared_ptr<Handle>(std::move(last)));
  else unlocked([&] { last.reset(); });
}

// Element type of a buffer, as in the buffer protocol.
struct Format {
  std::string code = "B";  // of the module struct
  py::ssize_t bytes = 1;
};
Format format_of(const py::object& dtype);                          // a name ("f4"), a numpy dtype or a struct code
std::size_t bytes_of(std::int64_t elements, const Format& format);  // throws for a negative or too large number

struct StreamObject;
struct BufferObject;

struct DeviceObject {
  std::optional<Device> handle;
  std::vector<std::weak_ptr<StreamObject>> streams;
  std::vector<std::weak_ptr<BufferObject>> buffers;

  // Buffers that were dropped inside of callbacks, with the memory that they wrap. Freed when the device is
  // synchronised or full: freeing waits for all its work.
  std::vector<std::pair<std::shared_ptr<void>, Buffer>> dropped;

  ~DeviceObject();
  const Device& get() const;  // throws if it was closed
  void free_dropped();
};

struct BufferObject {
  std::optional<Buffer> handle;
  std::shared_ptr<DeviceObject> device;
  Format format;
  std::shared_ptr<void> wrapped;  // keeps the memory of another owner
  std::size_t bytes = 0;
  std::string name;
  std::uint64_t id = 0;
  void* address = nullptr;
  int views = 0;  // exported views, which point into the memory

  ~BufferObject() { release_handle(); }
  const Buffer& get() const;  // throws if it was freed
  void release_handle();
  void free();  // throws BufferError while views exist
};
std::shared_ptr<BufferObject> make_buffer(std::shared_ptr<DeviceObject> device, Buffer buffer, Format format,
                                          std::shared_ptr<void> wrapped = {});
// By id or by an address inside of it; null: none, or it is being destroyed.
std::shared_ptr<BufferObject> find_buffer(std::uint64_t id);
std::shared_ptr<BufferObject> find_buffer(const void* address);

// Some elements of a buffer. Keeps the buffer alive.
struct RangeObject {
  std::shared_ptr<BufferObject> buffer;
  Range range;
};
RangeObject to_range(py::handle operand);  // a Buffer or a Range
std::vector<RangeObject> to_ranges(const py::object& operands);

// Memory that is exported through the buffer protocol. Keeps the buffer alive.
struct View {
  std::shared_ptr<BufferObject> buffer;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  Format format;
  bool writable = false;
};
// A numpy array of the view, or a memoryview if there is no numpy.
py::object array_of(View view);

struct StreamObject {
  std::optional<Stream> owned;  // empty: a default stream
  std::optional<StreamRef> ref;
  std::shared_ptr<DeviceObject> device;
  std::string name;
  std::uint64_t id = 0;

  ~StreamObject() { retire(owned); }
  std::string text() const;  // for errors, also after it was closed: "stream 5 'loads'"
  StreamRef get() const;     // throws if it was closed
};

struct EventObject {
  TimedEvent event;
  bool timed = false;
};

// Waits in slices of time, so that Ctrl-C ends the wait. `attempt` waits at most for the given time, without the GIL,
// and returns whether the wait is over. Throws kTimeout after `seconds`.
void wait_in_slices(std::optional<double> seconds, const char* what,
                    const std::function<bool(std::chrono::nanoseconds)>& attempt);

const char* in_text(MemoryKind kind);

void bind_callbacks(py::module_& module);
void bind_device(py::module_& module);
void bind_buffer(py::module_& module);
void bind_stream(py::module_& module);
void bind_plan(py::module_& module);
void bind_trace(py::module_& module);
void bind_communicator(py::module_& module);
void bind_weights(py::module_& module);

}  // namespace slip::python
