#include "slip/group.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "comm/failed_op.hpp"
#include "comm/group.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

struct Kept {
  struct Office {
    PostOffice* office = nullptr;
    std::weak_ptr<PostOffice> alive;  // empty once the communicator is destroyed: then `office` dangles
  };
  int depth = 0;
  std::vector<Office> offices;  // each communicator once
  std::vector<Letter> letters;
  std::vector<std::size_t> office_of;  // of each letter: index in `offices`

  void add(PostOffice& office, const Letter& letter) {
    std::size_t index = offices.size();
    while (index > 0 && (offices[index - 1].office != &office || offices[index - 1].alive.expired())) --index;
    if (index == 0) {
      offices.push_back({&office, office.weak()});
      index = offices.size();
    }
    letters.push_back(letter);
    office_of.push_back(index - 1);
  }
  void drop_from(std::size_t count) {
    letters.erase(letters.begin() + static_cast<std::ptrdiff_t>(count), letters.end());
    office_of.resize(count);
    if (count == 0) offices.clear();
  }
  // The letters and their offices, but not the depth.
  Kept take() { return {0, std::exchange(offices, {}), std::exchange(letters, {}), std::exchange(office_of, {})}; }
};

Kept& kept() {
  thread_local Kept of_thread;
  return of_thread;
}

std::vector<StreamRef> streams_of(std::span<const Letter> letters) {
  std::vector<StreamRef> streams;
  for (const Letter& letter : letters) {
    if (std::find(streams.begin(), streams.end(), letter.stream) == streams.end()) streams.push_back(letter.stream);
  }
  return streams;
}

// The first stream carries them all; the others wait for it, and it for them.
void issue_together(PostOffice& office, std::span<const Letter> letters) {
  const std::vector<StreamRef> streams = streams_of(letters);
  const StreamRef stream = streams.front();
  const auto others = std::span(streams).subspan(1);
  for (const StreamRef& other : others) stream.wait(other.record());
  office.issue_letters(letters, stream);
  if (others.empty()) return;
  const Event done = stream.record();
  for (const StreamRef& other : others) other.wait(done);
}

std::shared_ptr<PostOffice> alive(const Kept& all, std::size_t office) {
  if (std::shared_ptr<PostOffice> found = all.offices[office].alive.lock()) return found;
  const auto first = std::find(all.office_of.begin(), all.office_of.end(), office) - all.office_of.begin();
  throw Error(Code::kInvalidHandle, "the communicator of this message was destroyed before the group ended",
              all.letters[static_cast<std::size_t>(first)].here);
}

// Nothing is issued if any of them is refused.
void issue_all(const Kept& all) {
  const StreamRef stream = all.letters.front().stream;
  const auto is_other = [&](const Letter& letter) { return !(letter.stream == stream); };
  if (all.offices.size() == 1 && std::none_of(all.letters.begin(), all.letters.end(), is_other))
    return alive(all, 0)->issue_letters(all.letters, stream);
  std::vector<std::pair<std::shared_ptr<PostOffice>, std::vector<Letter>>> batches;
  for (std::size_t office = 0; office < all.offices.size(); ++office) {
    std::vector<Letter> letters;
    for (std::size_t i = 0; i < all.letters.size(); ++i) {
      if (all.office_of[i] == office) letters.push_back(all.letters[i]);
    }
    if (!letters.empty()) batches.emplace_back(alive(all, office), std::move(letters));
  }
  for (const auto& [office, letters] : batches) office->check_letters(letters, letters.front().stream);
  for (const auto& [office, letters] : batches) issue_together(*office, letters);
}

// The error of a group that ended in its destructor: whoever uses its communicators or streams next gets it.
void stick(const Kept& all, const Error& error) {
  const std::string text = bare_text(error);
  for (const Kept::Office& one : all.offices) {
    if (const std::shared_ptr<PostOffice> office = one.alive.lock()) office->fail(error.code(), "a group: " + text);
  }
  for (const StreamRef& stream : streams_of(all.letters)) enqueue_failure(stream, error);
}

}  // namespace

void take_letter(PostOffice& office, const Letter& letter) {
  Kept& now = kept();
  if (now.depth == 0) return office.issue_letters({&letter, 1}, letter.stream);
  now.add(office, letter);
}

Group::Group() : exceptions_(std::uncaught_exceptions()), before_(kept().letters.size()) { ++kept().depth; }

Group::~Group() {
  if (!open_) return;
  Kept& now = kept();
  if (std::uncaught_exceptions() > exceptions_) {  // cancelled
    --now.depth;
    now.drop_from(std::min(before_, now.letters.size()));
    return;
  }
  if (--now.depth > 0 || now.letters.empty()) return;
  try {
    const Kept all = now.take();
    try {
      issue_all(all);
    } catch (const Error& error) {
      log_line(error.what());
      stick(all, error);
    }
  } catch (const std::exception& error) {  // no memory even for the failure
    log_line(error.what());
  }
}

void Group::end() {
  Kept& now = kept();
  if (!std::exchange(open_, false) || --now.depth > 0 || now.letters.empty()) return;
  Kept all = now.take();
  issue_all(all);
  all.drop_from(0);
  if (now.letters.empty()) std::swap(now.letters, all.letters), std::swap(now.office_of, all.office_of);
}

}  // namespace slip
