// WordsWritten: which stream memory operations may have let go who waits for a word.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "slip/trace.hpp"
#include "watch/race/clocks.hpp"

namespace slip {

class WordsWritten {
 public:
  void write(const TraceRange& word, Clocks::Point point, std::uint32_t value);
  // Something else wrote these bytes: what was signalled before is forgotten.
  void forget(const TraceRange& range);

  bool is_written(const TraceRange& word, std::uint32_t value) const;
  // The point that has certainly passed when the word is seen to have reached the value: the first write that reaches
  // it. Nothing if several streams may have written it, for it may have been any of them.
  std::optional<Clocks::Point> passed(const TraceRange& word, std::uint32_t value) const;

 private:
  struct Write {
    Clocks::Point point;
    std::uint32_t value;
  };
  const std::vector<Write>* writes_of(const TraceRange& word) const;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<Write>> words_;  // by buffer and offset
};

}  // namespace slip
