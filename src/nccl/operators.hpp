// Other objects that belong to a communicator: operators of ncclRedOpCreatePreMulSum, and registered buffers.
//
// Any thread may call any function.
#pragma once

#include <list>
#include <optional>
#include <vector>

#include "base/sync.hpp"
#include "nccl/nccl.h"

namespace slip::nccl {

struct PreMulOp {
  int id = 0;  // the value of the ncclRedOp_t; unique in the process: another communicator refuses it
  ncclDataType_t type = ncclFloat32;
  double factor = 1;
  const void* device_factor = nullptr;  // not null: a collective reads the factor from here when it is called
};

class PreMulOps {
 public:
  int add(PreMulOp op);  // returns the new id
  bool remove(int id);
  std::optional<PreMulOp> find(int id) const;

 private:
  mutable base::SpinLock lock_;
  std::vector<PreMulOp> ops_ SLIP_GUARDED_BY(lock_);
};

// The handles of registered buffers. A registration has no effect; a handle is kept so that ncclCommDeregister can
// refuse an unknown one.
class Registrations {
 public:
  void* add();
  bool remove(const void* handle);

 private:
  base::SpinLock lock_;
  std::list<char> all_ SLIP_GUARDED_BY(lock_);  // the address of an element is the handle
};

}  // namespace slip::nccl
