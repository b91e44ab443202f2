// Gate: a kernel that blocks a stream of the GPU until the host opens the gate. So the submission of the later work is
// timed alone, without the GPU's own time.
#pragma once

#include <cuda_runtime_api.h>

namespace slip::bench {

class Gate {
 public:
  Gate();
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Later work of the stream waits for open(). At most 1,024 launches fit behind it: the next would block the host.
  void close(cudaStream_t stream);
  void open();

  // Throws if the gate opened by its timeout. REQUIRES: the stream is done.
  void expect_held() const;

 private:
  struct Words;
  Words* words_ = nullptr;  // pinned; the kernel reads them over the bus
};

}  // namespace slip::bench
