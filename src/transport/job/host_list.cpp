#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "transport/job/job.hpp"
#include "transport/socket/address.hpp"

namespace slip::transport {
namespace {

constexpr int kMaxSlots = 1 << 16;
constexpr std::string_view kBlank = " \t\r";
constexpr std::string_view kPunctuation = "-_.:%@";  // allowed in host names besides letters and digits

[[noreturn]] void refuse(const std::string& where, std::string_view entry, std::string_view why) {
  base::fail(ErrorCode::kInvalidValue, {}, "{}: '{}' {}", where, entry, why);
}

int slots_of(std::string_view text, const std::string& where, std::string_view entry) {
  const std::optional<int> slots = base::parse_number(text, 1, kMaxSlots);
  if (!slots) refuse(where, entry, fmt::format("has '{}' slots: must be a number from 1 to {}", text, kMaxSlots));
  return *slots;
}

// A host becomes an argument of ssh, which would take a leading '-' for an option.
void check_name(const std::string& name, const std::string& where, std::string_view entry) {
  if (name.empty() || without_user(name).empty()) refuse(where, entry, "names no host");
  if (name.front() == '@') refuse(where, entry, "names no user before the '@'");
  if (name.front() == '-') refuse(where, entry, "begins with '-'");
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) || kPunctuation.find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!std::ranges::all_of(name, allowed))
    refuse(where, entry, "has a character that no host name has; write NAME, USER@NAME, NAME:SLOTS or [IPv6]:SLOTS");
}

// "b", "b:4", "me@b:4", "fd00::1", "[fd00::1]", "[fd00::1]:4". More than one colon without brackets: an IPv6 address.
HostEntry parse_entry(std::string_view entry, const std::string& where) {
  HostEntry result;
  const std::size_t open = entry.find('['), close = entry.find(']');
  std::string_view slots;
  bool has_slots = false;
  if (open != std::string_view::npos && close != std::string_view::npos && open < close) {
    result.name = std::string(entry.substr(0, open)) + std::string(entry.substr(open + 1, close - open - 1));
    slots = entry.substr(close + 1);
    has_slots = !slots.empty();
    if (has_slots && slots.front() != ':') refuse(where, entry, "has more than a :NUMBER behind the ']'");
    if (has_slots) slots.remove_prefix(1);
  } else {
    const std::size_t colon = entry.find(':');
    has_slots = colon != std::string_view::npos && colon == entry.rfind(':');
    result.name = entry.substr(0, has_slots ? colon : entry.size());
    if (has_slots) slots = entry.substr(colon + 1);
  }
  check_name(result.name, where, entry);
  if (has_slots) result.slots = slots_of(slots, where, entry);
  return result;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words = base::split(line, kBlank);
  std::erase(words, "");
  return words;
}

// The number of ranks of each entry.
std::vector<int> shares(std::span<const HostEntry> hosts, int nranks) {
  const auto open = static_cast<int>(std::ranges::count(hosts, 0, &HostEntry::slots));
  const int fixed = std::accumulate(hosts.begin(), hosts.end(), 0,
                                    [](int sum, const HostEntry& host) { return std::min(sum + host.slots, 1 << 28); });
  if (open == 0 && nranks > fixed)
    base::fail(ErrorCode::kInvalidValue, {},
               "{} ranks do not fit in the {} slots of the hosts: give more slots, as in {}:{}", nranks, fixed,
               hosts.back().name, hosts.back().slots + nranks - fixed);
  const bool mixed = open > 0 && open < static_cast<int>(hosts.size());
  if (mixed && nranks < fixed + open)
    base::fail(ErrorCode::kInvalidValue, {},
               "{} ranks: the hosts with a number of slots take {}, and no rank is left for some of the other {}: "
               "give more ranks, or a number of slots for each host",
               nranks, std::min(fixed, nranks), open);
  std::vector<int> result;
  int rest = std::max(nranks - fixed, 0), left = nranks, waiting = open;
  for (const HostEntry& host : hosts) {
    int share = std::min(host.slots, left);
    if (host.slots == 0) {
      share = (rest + waiting - 1) /
              waiting;  // rounded up: if the rest cannot be divided evenly, the first hosts take one more
      rest -= share;
      --waiting;
    }
    left -= share;
    result.push_back(share);
  }
  return result;
}

}  // namespace

std::vector<HostEntry> parse_hosts(std::string_view list) {
  std::vector<HostEntry> result;
  for (const std::string_view entry : base::split(list, ",")) result.push_back(parse_entry(entry, "--hosts"));
  return result;
}

std::vector<HostEntry> parse_host_file(std::string_view text, const std::string& path) {
  std::vector<HostEntry> result;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, std::min(text.substr(0, end).find('#'), end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty()) continue;
    const std::string where = fmt::format("{}, line {}", path, number);
    HostEntry entry = parse_entry(words.front(), where);
    for (std::size_t i = 1; i < words.size(); ++i) {
      constexpr std::string_view kSlots = "slots=";
      if (!words[i].starts_with(kSlots) || entry.slots != 0)
        refuse(where, words[i], "has another form; write HOST, HOST:SLOTS or HOST slots=NUMBER");
      entry.slots = slots_of(words[i].substr(kSlots.size()), where, words[i]);
    }
    result.push_back(std::move(entry));
  }
  if (result.empty()) base::fail(ErrorCode::kInvalidValue, {}, "{} names no host", path);
  return result;
}

std::vector<HostRanks> place_ranks(std::span<const HostEntry> hosts, int nranks) {
  if (nranks == 0) {
    for (const HostEntry& host : hosts) nranks += std::max(host.slots, 1);
  }
  const std::vector<int> share = shares(hosts, nranks);
  std::vector<HostRanks> result;
  int rank = 0;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (share[i] == 0) continue;
    auto host = std::ranges::find(result, hosts[i].name, &HostRanks::name);
    if (host == result.end()) host = result.insert(result.end(), HostRanks{hosts[i].name, {}});
    for (int k = 0; k < share[i]; ++k) host->ranks.push_back(rank++);
  }
  return result;
}

std::string without_user(const std::string& name) { return name.substr(name.find('@') + 1); }

bool is_this_host(const std::string& name) {
  if (name.find('@') != std::string::npos) return false;  // perhaps another user
  if (name == "localhost") return true;
  std::array<char, 256> own{};
  static_cast<void>(::gethostname(own.data(), own.size() - 1));
  // One of the two names may have a domain behind it.
  const std::string_view mine(own.data());
  const auto extends = [](std::string_view longer, std::string_view shorter) {
    return longer.starts_with(shorter) && longer.substr(shorter.size()).starts_with('.');
  };
  if (!mine.empty() && (name == mine || extends(name, mine) || extends(mine, name))) return true;
  return std::ranges::any_of(list_interfaces(), [&](const Interface& one) { return one.address.host() == name; });
}

}  // namespace slip::transport
