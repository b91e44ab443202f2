// Symptom: corrupted images. The next allocation gets the weight's memory while the layer still reads it.
#include "races/scenario.hpp"

namespace slip::races::program_001 {

void program(Setting& s) {
  Buffer weight = s.a.alloc(kBytes, "weight");
  work(s.a, "load", {}, {weight});
  s.b.wait(s.a.record());
  work(s.b, "denoise", {weight}, {});
  s.a.free(std::move(weight));  // in the stream that loaded it, which knows nothing of the reader
}

const InCorpus kThis({1, "weight freed on the copy stream", program, "denoise", "stream-ordered free"});

}  // namespace slip::races::program_001
