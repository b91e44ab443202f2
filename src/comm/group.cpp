#include "comm/group.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "slip/communicator.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

struct Kept {
  int depth = 0;
  std::vector<std::pair<PostOffice*, Letter>> letters;
};

Kept& kept() {
  thread_local Kept of_thread;
  return of_thread;
}

// The first stream carries them all; the others wait for it, and it for them.
void issue_together(PostOffice& office, const std::vector<Letter>& letters) {
  const StreamRef stream = letters.front().stream;
  std::vector<StreamRef> others;
  for (const Letter& letter : letters) {
    if (letter.stream == stream || std::find(others.begin(), others.end(), letter.stream) != others.end()) continue;
    others.push_back(letter.stream);
  }
  for (const StreamRef& other : others) stream.wait(other.record());
  office.issue_letters(letters, stream);
  if (others.empty()) return;
  const Event done = stream.record();
  for (const StreamRef& other : others) other.wait(done);
}

}  // namespace

void take_letter(PostOffice& office, const Letter& letter) {
  if (kept().depth > 0) kept().letters.emplace_back(&office, letter);
  else office.issue_letters({&letter, 1}, letter.stream);
}

Group::Group() { ++kept().depth; }

Group::~Group() {
  try {
    end();
  } catch (const Error& error) {
    log_line(error.what());
  }
}

void Group::end() {
  if (!std::exchange(open_, false) || --kept().depth > 0) return;
  const auto all = std::exchange(kept().letters, {});
  std::vector<PostOffice*> done;
  for (const auto& [office, first] : all) {
    if (std::find(done.begin(), done.end(), office) != done.end()) continue;
    done.push_back(office);
    std::vector<Letter> letters;
    for (const auto& [whose, letter] : all) {
      if (whose == office) letters.push_back(letter);
    }
    issue_together(*office, letters);
  }
}

}  // namespace slip
