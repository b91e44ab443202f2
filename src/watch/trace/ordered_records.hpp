// Records in the order of their sequence numbers, put where they belong as they are read: they are large, and moving
// them afterwards costs more than reading a number of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slip/trace.hpp"

namespace slip {

class OrderedRecords {
 public:
  std::vector<TraceRecord>& storage() { return records_; }
  std::size_t size() const { return records_.size() + rest_.size(); }

  // The place for the record with this number, from 1: valid until the next call, and to be filled with it. Null: there
  // is one already.
  TraceRecord* add(std::uint64_t sequence) {
    const std::uint64_t index = sequence - 1;
    const std::size_t end = records_.size();
    if (index < end) {
      if (records_[index].sequence != 0) return nullptr;
      --holes_;
      return &records_[index];
    }
    if (index - end > kMaxHoles - holes_) return &rest_.emplace_back();
    holes_ += index - end;
    records_.resize(index + 1);
    return &records_.back();
  }

  // Whether all have found their places, and so are in order and there once.
  bool in_order() const { return rest_.empty(); }

  // All of them; what found no place is at the end.
  std::vector<TraceRecord> take() {
    if (holes_ > 0) std::erase_if(records_, [](const TraceRecord& record) { return record.sequence == 0; });
    records_.insert(records_.end(), rest_.begin(), rest_.end());
    rest_ = {};
    return std::move(records_);
  }

 private:
  static constexpr std::size_t kMaxHoles = 16'384;  // as many ops may be submitted before the first of them runs
  std::vector<TraceRecord> records_, rest_;
  std::size_t holes_ = 0;
};

}  // namespace slip
